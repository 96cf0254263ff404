"""The server's campaign in short: requests of every kind, large uploads and crowds, against a server in a thread."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from urllib.parse import urlsplit

import pytest
from campaigns import server as campaign
from campaigns.campaign import Deadline, Tally, chance
from campaigns.crowd import CROWDS
from campaigns.requests import KINDS, make


def test_whatever_is_sent_is_answered_or_refused_and_crowds_are_ended(start_here, monkeypatch) -> None:
    monkeypatch.setattr(campaign, "TIMEOUT", 1)
    monkeypatch.setattr(campaign, "BYSTANDERS", 10)
    tally = Tally(campaign.GOOD, campaign.BAD)
    given = Namespace(requests=20 * len(KINDS), seed=1, callers=8)
    with start_here(body_timeout=1, idle_timeout=1, write_timeout=1, max_connections=20) as served:
        place = urlsplit(served.url)
        attacked = campaign.Server(None, (place.hostname, place.port))
        asyncio.run(campaign.fuzz(attacked, given, tally, Deadline(minutes=10)))
        asyncio.run(campaign.uploads(attacked, 2, tally))
        for crowd in CROWDS:
            asyncio.run(campaign.crowd(attacked, crowd, 30 if crowd.reads else 2, tally))
        assert asyncio.run(campaign.Caller(attacked).metric("dubito_requests_in_work")) == 0
    assert not tally.failed, tally.examples
    assert tally.cases == given.requests + 2 + 30 + 30 + 2 + 3 * 10
    assert "all accepted requests have been answered, but 2 of their clients did not read" in served.log()


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_is_something_and_can_be_made_again(kind: str) -> None:
    for number in (*range(100), 7915):  # which was once nothing at all
        pieces = make(kind, chance(0, kind, number))
        assert pieces
        assert all(pieces)
        assert pieces == make(kind, chance(0, kind, number))
