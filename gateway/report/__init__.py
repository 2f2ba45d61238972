"""The report of a job as one HTML page: which pictures to show, how to draw figures. Only `build` knows rows."""
