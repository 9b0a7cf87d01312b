"""The way to the agent: ssh, hop, deploy, client."""
