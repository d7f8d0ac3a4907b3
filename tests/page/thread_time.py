"""What a page takes of the processor: the wall clock of a browser also holds what else the machine does."""

from __future__ import annotations


class ThreadTime:
    """Of the thread that runs a page's scripts and lays it out, in seconds from here on."""

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
