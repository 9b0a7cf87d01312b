"""The console in a browser on this machine: ``stoker serve``."""
