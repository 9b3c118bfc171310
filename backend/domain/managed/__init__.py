"""Requests to SageMaker's managed toolkit: settings, exact requests, and the status and cost of a job there. Pure."""
