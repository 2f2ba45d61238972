"""From rows to arrays to measures: the results of a job that pages, report and API show."""
