"""All that is SGLang's own: flags, log lines, metrics, capacity."""
