"""Waiting for a page, and its processor time: a wall clock would count other work of the machine."""

from __future__ import annotations

import time

LIMIT_SECONDS = 120  # for the awaited event; a browser starts in one while nothing else runs


def wait_for(page, expression: str) -> None:
    """Until it is true. Playwright's wait_for_function evaluates a text in the page whenever the first look is too
    early, which the page's content security policy refuses."""
    until = time.monotonic() + LIMIT_SECONDS
    while not page.evaluate(expression):
        assert time.monotonic() < until, f"{expression} never came"
        page.wait_for_timeout(20)


class ThreadTime:
    """Processor time of the thread that runs a page's scripts and lays it out, in seconds from here on."""

    def __init__(self, page) -> None:
        self._page, self._session = page, page.context.new_cdp_session(page)
        self._session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def seconds(self) -> float:
        metrics = self._session.send("Performance.getMetrics")["metrics"]
        return next(each["value"] for each in metrics if each["name"] == "ThreadTime")

    def of_click(self, selector: str, place: int = 0) -> float:
        """From a click on one of the elements until all is laid out again: the best of three."""
        taken = []
        for _ in range(3):
            before = self.seconds()
            self._page.evaluate(
                "([selector, place]) => { document.querySelectorAll(selector)[place].click();"
                " document.body.offsetHeight; }",
                [selector, place],
            )
            taken.append(self.seconds() - before)
        return min(taken)

    def of_slowest_click(self, selector: str) -> float:
        return max(self.of_click(selector, place) for place in range(self._page.locator(selector).count()))
