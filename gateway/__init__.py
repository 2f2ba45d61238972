"""The only service that users talk to: jobs, results, pages; and the worker that drives the model services."""
