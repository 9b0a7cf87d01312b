"""What the console wears: one theme from the first frame on, the others at a key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import App

from console import prefs, themes

if TYPE_CHECKING:
    from console.app import StokerApp


class Wardrobe:
    """Of one app."""

    def __init__(self, app: StokerApp, *, remember: bool) -> None:
        self._app = app
        self._remember = remember
        self._names: list[str] = []

    def wear(self, wish: str) -> None:
        """Put the wished theme on, before the stylesheet is read: a change later would have it
        read again, and everything painted twice."""
        app = self._app
        theme = themes.find(wish) or themes.find(themes.FIRST)
        if theme is not None:
            app.register_theme(theme)
            app.set_reactive(App.theme, theme.name)
            app.stylesheet.set_variables(app.get_css_variables())
            app.set_class(theme.dark, "-dark-mode", update=False)
            app.set_class(not theme.dark, "-light-mode", update=False)
            app.set_class(True, f"-theme-{theme.name}", update=False)

    def lay_out(self) -> None:
        """All of them, to be gone through by a key; once."""
        if self._names:
            return
        found, problems = themes.load_all()
        for theme in found:
            self._app.register_theme(theme)
        self._names = [t.name for t in found]
        for problem in problems:
            self._app.say(f"theme left out: {problem}", "warning")

    def turn(self) -> None:
        """The next theme, kept for the next time; in the first moment they are laid out for it."""
        self.lay_out()
        names = self._names or [self._app.theme]
        index = names.index(self._app.theme) if self._app.theme in names else -1
        self._app.theme = names[(index + 1) % len(names)]
        if self._remember:
            prefs.keep(theme=self._app.theme)
        self._app.say(f"theme: {self._app.theme}")

    def recolour(self, _theme: object) -> None:
        """Another theme is on: paint everything that is there in its colours."""
        for screen in self._app.screen_stack:
            for widget in screen.walk_children():
                widget.notify_style_update()
                widget.refresh()
