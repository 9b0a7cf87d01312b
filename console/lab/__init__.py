"""The embedded stand-ins behind `stoker lab`."""
