"""From rows to arrays to measures: everything that pages, report and API say about a job's outcome."""
