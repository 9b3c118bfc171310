"""A variant on a managed endpoint: the document, the containers' variables, the requests, and the same as text."""
