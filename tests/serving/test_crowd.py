"""Clients that come in numbers, send slowly, never read, or stay without asking: others are answered all the same."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dubito.errors import OptionError
from dubito.runs.run import Run
from dubito.serving.application import Service
from dubito.serving.limits import Limits
from dubito.serving.model import ServedModel
from dubito.serving.refusal import RefusedError
from dubito.serving.server import bind, refuse_connections
from dubito.serving.traffic import GRACE, Connections, Pixels, Traffic, Upload


@dataclass(eq=False)
class Guest:
    """A connection that began to wait so many seconds ago, or is owed an answer."""

    address: str
    waits: float | None
    ended: bool = False

    def waits_since(self) -> float | None:
        return None if self.waits is None else time.monotonic() - self.waits

    def make_room(self) -> None:
        self.ended = True


def test_the_address_with_most_connections_loses_the_one_that_waits_longest() -> None:
    open_now = Connections(Limits(max_connections=5, client_share=0.8))
    many = [Guest("many", 100 + number) for number in range(3)]
    lone = Guest("lone", 1000)
    fresh = Guest("many", GRACE / 2)
    assert all(open_now.enter(guest) for guest in (*many, lone, fresh))
    assert open_now.enter(Guest("new", 0))
    assert [guest.ended for guest in (*many, lone, fresh)] == [False, False, True, False, False]
    assert len(open_now) == 5


def test_an_address_has_its_share_and_makes_room_for_itself_alone() -> None:
    open_now = Connections(Limits(max_connections=4, client_share=0.5))
    other, idle, owed = Guest("other", 1000), Guest("greedy", 10), Guest("greedy", None)
    assert all(open_now.enter(guest) for guest in (other, idle, owed))
    assert open_now.enter(Guest("greedy", None))
    assert idle.ended
    assert not other.ended
    assert not open_now.enter(Guest("greedy", None)), "all that it has are owed an answer"
    open_now.leave(owed)
    open_now.leave(owed)
    assert open_now.enter(Guest("greedy", None))


def test_requests_in_work_are_limited_for_all_and_for_each() -> None:
    traffic = Traffic(Limits(max_requests=3, client_share=0.7))
    with traffic.admit("a"), traffic.admit("a"):
        with pytest.raises(RefusedError, match="busy with 2 of your requests"), traffic.admit("a"):
            pass
        with traffic.admit("b"), pytest.raises(RefusedError, match="busy with 3 other requests"), traffic.admit("c"):
            pass
        assert traffic.in_work == 2
    traffic.hold("a")
    traffic.hold("a")
    with pytest.raises(RefusedError, match="2 of your"):  # answers that it does not read
        traffic.require_room("a")
    traffic.require_room("b")
    traffic.let_go("a")
    traffic.require_room("a")
    with pytest.raises(OptionError, match=r"client_share is 2, but must be 0\.05 to 1"):
        Limits(client_share=2)


def test_uploads_count_until_they_are_let_go() -> None:
    limits = Limits(max_body_bytes=100, max_upload_bytes=150)
    traffic = Traffic(limits)

    async def body(size: int):
        yield b"x" * size

    async def check() -> None:
        with Upload(traffic, limits) as first:
            assert len(await first.read(body(90), None)) == 90
            with Upload(traffic, limits) as second, pytest.raises(RefusedError, match="many large requests"):
                await second.read(body(90), None)
            assert traffic.buffered == 90
            first.let_go()
            with Upload(traffic, limits) as second:
                await second.read(body(90), None)
        assert traffic.buffered == 0

    asyncio.run(check())


def test_a_server_rests_once_in_a_pause_and_then_keeps_its_own_predictor_alone(served_run, monkeypatch) -> None:
    service = Service(ServedModel(Run.open(served_run)))
    traffic = service.traffic
    assert not traffic.may_rest(), "nothing has been asked"
    with Upload(traffic, service.limits):
        service.model.predictors("weights", 3, seed=5)
    assert not traffic.may_rest(), "there may be more to come"
    monkeypatch.setattr("dubito.serving.traffic.QUIET", 0.0)
    with traffic.admit("a"):
        assert not traffic.may_rest()
    assert traffic.may_rest()
    assert not traffic.may_rest()
    service.rest()
    assert len(service.model.predictors) == 1
    service.close()


def test_images_are_decoded_while_their_pixels_fit_together_and_in_turn() -> None:
    async def check() -> None:
        pixels = Pixels(10)
        done: list[int] = []

        async def decode(count: int) -> None:
            await pixels.take(count)
            done.append(count)

        await decode(6)
        waiting = [asyncio.create_task(decode(count)) for count in (5, 1)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert done == [6]
        pixels.give(6)
        await asyncio.gather(*waiting)
        assert done == [6, 5, 1]

    asyncio.run(check())


def test_a_model_is_described_without_places_of_this_machine(own_run: Path) -> None:
    config = own_run / "config.yaml"
    config.write_text(config.read_text().replace("name: digits", "name: /home/somebody/photographs"))
    model = ServedModel(Run.open(own_run))
    assert model.describe()["data"] == "photographs"
    assert "/home" not in json.dumps(model.describe()) + model.title


def test_who_has_connected_is_still_heard_when_nobody_else_is() -> None:
    with bind("127.0.0.1", 0) as listening:
        place = listening.getsockname()
        with socket.create_connection(place) as early, socket.socket() as late:
            refuse_connections(listening)
            late.settimeout(0.2)
            with pytest.raises(TimeoutError):
                late.connect(place)
            early.sendall(b"a request")
            taken, _ = listening.accept()
            with taken:
                assert taken.recv(100) == b"a request"


HEAD = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def connect(served, received: int | None = None) -> socket.socket:
    place = urlsplit(served.url)
    opened = socket.socket()
    if received is not None:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, received)
    opened.settimeout(60)
    opened.connect((place.hostname, place.port))
    return opened


def everything(opened: socket.socket) -> bytes:
    """What comes until the connection is closed; a reset is an error."""
    answer = b""
    while piece := opened.recv(65536):
        answer += piece
    return answer


def test_neither_slow_nor_idle_nor_deaf_clients_shut_others_out_or_keep_the_server_from_stopping(
    start_here, digit_images
) -> None:
    with start_here(max_requests=4, max_connections=12, client_share=1, write_timeout=1) as served:
        crowd = [connect(served) for _ in range(11)]
        for opened in crowd[:6]:
            opened.sendall(HEAD + b"Content-Length: 1000\r\n\r\n{")
        assert served.predict(digit_images[0]).status_code == 200
        assert served.metric("dubito_requests_in_work") == 0
        time.sleep(1.1 * GRACE)  # a younger connection is left alone
        deaf = [connect(served, received=2048) for _ in range(3)]
        assert served.predict(digit_images[0]).status_code == 200
        first = everything(crowd[0])
        assert first.startswith(b"HTTP/1.1 503 ")
        assert b"closed this connection for others" in first
        for opened in deaf:  # more than the system takes for a client
            opened.sendall(b"GET /static/page.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 500)
        while served.metric("dubito_requests_in_work") < 3:
            time.sleep(0.05)
        served.stop()
        for opened in deaf:
            with pytest.raises(ConnectionResetError):
                everything(opened)
        for opened in (*crowd, *deaf):
            opened.close()
    assert "all accepted requests have been answered, but 3 of their clients did not read the answer" in served.log()


def test_a_body_whose_length_is_told_twice_is_refused(server) -> None:
    with connect(server) as opened:
        opened.sendall(HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n")
        answer = everything(opened)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"both Content-Length and Transfer-Encoding" in answer
    assert b"connection: close" in answer.lower()


def test_bytes_that_are_no_http_are_answered_though_more_of_them_follow(server) -> None:
    with connect(server) as opened:
        opened.sendall(b"\0" * 1000)
        opened.sendall(b"\0" * 1_000_000)
        assert everything(opened).startswith(b"HTTP/1.1 400 ")


def test_json_of_very_many_values_is_refused_unread(server) -> None:
    with server.client as client:
        answer = client.post("/predict", json={"images": [[]] * 100_000})
    assert answer.status_code == 413
    assert "more than 100,000 values" in answer.json()["error"]
