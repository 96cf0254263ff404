// Talks with the server. Whatever goes wrong becomes an Error with one sentence.

const STORED = "dubito-api-key";
const TRIES = 6;

export class KeyNeeded extends Error {}
export class ServerGone extends Error {}

export const key = {
  get: () => { try { return sessionStorage.getItem(STORED) || "" } catch { return "" } },
  set: value => { try { sessionStorage.setItem(STORED, value) } catch {} },
};

const pause = (seconds, signal) => new Promise((resolve, reject) => {
  const timer = setTimeout(resolve, 1000 * seconds);
  signal?.addEventListener("abort", () => { clearTimeout(timer); reject(signal.reason) }, { once: true });
});

/** The JSON answer of the server; `busy` is told when it has to be asked again, and in how many seconds. */
export async function ask(path, { body, signal, busy = () => {} } = {}) {
  const headers = key.get() ? { "X-API-Key": key.get() } : {};
  if (body) headers["Content-Type"] = "application/json";
  for (let tried = 1; ; tried++) {
    let response;
    try {
      response = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ServerGone("The server does not answer. If dubito serve was stopped, start it again.");
    }
    const answer = await response.json().catch(error => { if (error.name === "AbortError") throw error; return null });
    if (response.ok && answer) return answer;
    if (response.status === 503 && tried < TRIES) {
      const seconds = Math.min(Math.max(Number(response.headers.get("Retry-After")) || 1, .2), 30);
      busy(seconds);
      await pause(seconds, signal);
      continue;
    }
    const sentence = answer?.error || `The server answered with status ${response.status} and no explanation.`;
    throw response.status === 401 ? new KeyNeeded(sentence) : new Error(sentence);
  }
}

/** Does one piece of work at a time; of those asked for meanwhile only the latest is done. */
export class Latest {
  #work; #next = null; #abort = null;
  constructor(work) { this.#work = work }

  /** With `urgent`, what is under way is given up. */
  async ask(wanted, urgent = false) {
    this.#next = wanted;
    if (urgent) this.#abort?.abort();
    if (this.#abort) return;
    while (this.#next !== null) {
      const now = this.#next;
      this.#next = null;
      this.#abort = new AbortController();
      try { await this.#work(now, this.#abort.signal) }
      catch (error) { if (error.name !== "AbortError") throw error }
      finally { this.#abort = null }
    }
  }

  get waiting() { return this.#next !== null }
}
