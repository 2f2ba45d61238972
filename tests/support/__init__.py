"""What tests share: small models and services, sites of work, servers, drawn inputs."""
