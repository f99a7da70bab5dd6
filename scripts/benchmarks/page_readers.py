"""People who look at the analyst's page: threads that refresh it once a second."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from protocol_spec import Manifest

REFRESH_SECONDS: Final = 1.0  # from one refresh of a reader to its next
ANSWER_SECONDS: Final = 30.0


class Seen:
    """What the readers got: how long each page took, and how many failed."""

    def __init__(self) -> None:
        self.page_seconds: list[float] = []
        self.failures = 0


@contextmanager
def refreshing(port: int, asked: Manifest, readers: int) -> Iterator[Seen]:
    """Readers, each on one of the campaign's pages, until the context ends."""
    seen, done = Seen(), threading.Event()
    paths = addresses(asked)
    threads = [
        threading.Thread(target=_read, args=(port, paths[i % len(paths)], i / readers, seen, done))
        for i in range(readers)
    ]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        done.set()
        for thread in threads:
            thread.join()


def addresses(asked: Manifest) -> list[str]:
    """The pages a reader may have open."""
    campaign = f"/campaigns/{asked.campaign}"
    attribute = f"{campaign}/attributes/{asked.attributes[0].name}"
    return ["/", campaign, attribute, f"{attribute}/rounds/latest", f"{campaign}.json"]


def get(port: int, path: str) -> int | None:
    """The status of one page, wholly read, or None without an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
    except OSError:
        return None
    finally:
        connection.close()
    return answer.status


def _read(port: int, path: str, place: float, seen: Seen, done: threading.Event) -> None:
    """One reader. They begin spread over a second, as people do, so each finds the page changed."""
    done.wait(place * REFRESH_SECONDS)
    while not done.is_set():
        begin = time.perf_counter()
        if get(port, path) == http.client.OK:
            seen.page_seconds.append(time.perf_counter() - begin)
        else:
            seen.failures += 1
        done.wait(max(0.0, REFRESH_SECONDS - (time.perf_counter() - begin)))
