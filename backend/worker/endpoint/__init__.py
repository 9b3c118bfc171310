"""The worker of an endpoint: its server is loaded for the first request, and unloaded when nobody asks."""
