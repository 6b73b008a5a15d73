"""Where something that waits is opened: a request on a page of its own, everything else in Needs-you."""

from textual.app import App

from crewboard.records import Request
from crewboard_tui.context import AppContext
from crewboard_tui.views.requests.plan_screen import ReviewScreen
from crewboard_tui.views.requests.question_screen import QuestionScreen


def open_request(app: App[None], desk: AppContext, request: Request) -> None:
    """Put the page of a request on top, in the place of another request's page."""
    page = QuestionScreen(desk, request) if request.type == "question" else ReviewScreen(desk, request)
    if isinstance(app.screen, QuestionScreen | ReviewScreen):
        app.switch_screen(page)
    else:
        app.push_screen(page)
