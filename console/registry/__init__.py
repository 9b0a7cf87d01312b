"""The actions of the console, a module a room; :mod:`console.actions` puts them together."""
