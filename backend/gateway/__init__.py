"""The gateway: one address for all models that serve jobs serve. Knows neither store nor jobs:
`service.serving.gateway` hands it keys and servers."""
