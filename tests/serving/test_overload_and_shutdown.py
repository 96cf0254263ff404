"""Too much at once, and the end."""

from __future__ import annotations

import asyncio
import signal

import httpx

CALLERS = 32


async def ask_all(url: str, image: bytes, samples: int, then=None) -> list[httpx.Response | Exception]:
    limits = httpx.Limits(max_connections=2 * CALLERS)
    async with httpx.AsyncClient(base_url=url, timeout=300, trust_env=False, limits=limits) as client:
        data = {"samples": str(samples)}
        asked = [
            asyncio.create_task(client.post("/predict", files={"images": ("a.png", image)}, data=data))
            for _ in range(CALLERS)
        ]
        if then is not None:
            await then(client)
        return await asyncio.gather(*asked, return_exceptions=True)


def test_overload_is_refused_then_over_and_a_signal_loses_nothing_that_was_accepted(start, digit_images) -> None:
    with start("--max-queue", 8, "--max-batch", 8) as served:
        responses = asyncio.run(ask_all(served.url, digit_images[0], samples=100))
        codes = [response.status_code for response in responses]
        assert set(codes) == {200, 503}
        for response in responses:
            if response.status_code == 503:
                assert int(response.headers["retry-after"]) >= 1
                assert "busy" in response.json()["error"]
        health = served.client.get("/health").json()
        assert health == {"status": "ok", "queue": 0}
        assert [served.predict(digit_images[0]).status_code for _ in range(5)] == [200] * 5
        assert served.metric("dubito_requests_in_work") == 0

        accepted: list[float] = []
        told: list[httpx.Response] = []

        async def stop(client: httpx.AsyncClient) -> None:
            while not accepted or accepted[-1] < 6:
                text = (await client.get("/metrics")).text
                accepted.append(float(text.partition("\ndubito_requests_in_work ")[2].split()[0]))
            served.process.send_signal(signal.SIGTERM)
            told.append(await client.get("/health"))
            told.append(await client.post("/predict", files={"images": ("a.png", digit_images[0])}))

        responses = asyncio.run(ask_all(served.url, digit_images[0], samples=150, then=stop))
        lost = [response for response in responses if isinstance(response, Exception)]
        assert not lost
        codes = [response.status_code for response in responses]
        assert set(codes) <= {200, 503}
        refused = [response for response in responses if response.status_code == 503]
        assert codes.count(200) >= 8  # what is at work and in the queue
        assert sum("stopping" in response.json()["error"] for response in refused) <= CALLERS - accepted[-1]
        assert [response.status_code for response in told] == [503, 503]
        assert told[0].json()["status"] == "stopping"
        assert "stopping" in told[1].json()["error"]
        assert served.process.wait(60) == 0
    assert "all accepted requests have been answered" in served.log()
    assert "Traceback" not in served.log()


def test_a_second_signal_does_not_wait_and_says_so(start, digit_images) -> None:
    with start() as served:

        async def stop(client: httpx.AsyncClient) -> None:
            accepted = 0.0
            while accepted < 6:
                text = (await client.get("/metrics")).text
                accepted = float(text.partition("\ndubito_requests_in_work ")[2].split()[0])
            served.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.1)
            served.process.send_signal(signal.SIGTERM)

        asyncio.run(ask_all(served.url, digit_images[0], samples=1000, then=stop))
        assert served.process.wait(60) == 1
    assert "Stopped before" in served.log()
    assert "all accepted requests have been answered" not in served.log()
