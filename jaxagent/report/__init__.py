"""What came of runs and sweeps: pictures of a run, and one page that compares many.

`study` reads them, `analysis` says what they show in plain numbers, `figures` draws it, `page` puts it on a page.
"""

from jaxagent.report.pictures import Frame, as_text, can_draw, draw, play, save_curves, save_episode

__all__ = ["Frame", "as_text", "can_draw", "draw", "play", "save_curves", "save_episode"]
