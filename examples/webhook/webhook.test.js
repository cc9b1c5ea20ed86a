import assert from "node:assert/strict";
import { createServer } from "node:http";
import test, { after, before } from "node:test";

import { DeadLetter, Delay, Message, component } from "../../sdk/js/hostler.js";
import { deliverer, signed, waitOf } from "./webhook.js";

/** What the receiver does with a request, and the requests that it got. */
let answer;
const got = [];
const server = createServer(async (request, response) => {
  const body = [];
  for await (const chunk of request) body.push(chunk);
  got.push({ path: request.url, headers: request.headers, body: Buffer.concat(body).toString() });
  answer(response);
});
let url;

before(async () => {
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  url = `http://127.0.0.1:${server.address().port}/hook`;
});
after(() => server.close());

const ORDER = { id: "0198", body: '{"order": 1}', contentType: "application/json" };

/** Delivers to the receiver, which does this. */
function deliver(does, message = ORDER, env = { WEBHOOK_URL: url, WEBHOOK_SECRET: "s3cret" }) {
  answer = does;
  return deliverer(() => env)(new Message(message));
}

const says = (status, body = "", headers = {}) => (response) => response.writeHead(status, headers).end(body);

test("what the receiver takes is done, and is signed", async () => {
  assert.equal(await deliver(says(204)), undefined);
  const { headers, body } = got.at(-1);
  assert.equal(body, ORDER.body);
  assert.equal(headers["content-type"], "application/json");
  assert.equal(headers["idempotency-key"], "0198");
  const seconds = Number(headers["webhook-timestamp"]);
  assert.ok(Math.abs(seconds - Date.now() / 1000) < 60);
  const expected = await signed(new Message(ORDER), "s3cret", seconds);
  assert.equal(headers["webhook-signature"], expected["webhook-signature"]);
});

test("signs as Standard Webhooks says", async () => {
  // By `openssl dgst -sha256 -hmac s3cret -binary | base64`, over `0198.1700000000.{"order": 1}`.
  const text = "v1,xOhpx5fmm0jpo7O3ztoKBEVITqLJbwk3D75kN5reSKg=";
  // The same key, which is the bytes of `s3cret`.
  const both = await signed(new Message(ORDER), "s3cret whsec_czNjcmV0", 1_700_000_000);
  assert.equal(both["webhook-signature"], `${text} ${text}`);
});

test("the URL may come from the message", async () => {
  await deliver(says(200), { ...ORDER, attributes: { url: `${url}?from=attribute` } }, { WEBHOOK_SECRET: "x" });
  assert.equal(got.at(-1).path, "/hook?from=attribute");
  for (const bad of ["mailto:ada@example.com", "/hook", undefined]) {
    const attributes = bad ? { url: bad } : {};
    await assert.rejects(deliver(says(200), { ...ORDER, attributes }, { WEBHOOK_SECRET: "x" }), DeadLetter);
  }
  await assert.rejects(deliver(says(200), ORDER, { WEBHOOK_URL: url }), /WEBHOOK_SECRET/);
});

test("a receiver that is busy says for how long", async () => {
  for (const status of [429, 503]) {
    await assert.rejects(deliver(says(status, "busy", { "retry-after": "120" })), (error) => error instanceof Delay && error.seconds === 120);
    await assert.rejects(deliver(says(status, "busy")), { name: "Undelivered", message: `the receiver said ${status}: busy` });
  }
});

test("Retry-After is seconds or a date, at most 12 hours ahead", () => {
  const now = Date.UTC(2026, 10, 21, 12);
  for (const [header, seconds] of [
    ["7", 7],
    ["0", 1],
    ["86400", 43_200],
    ["Sat, 21 Nov 2026 12:01:30 GMT", 90],
    ["Sat, 21 Nov 2026 11:00:00 GMT", 1],
    ["Mon, 23 Nov 2026 12:00:00 GMT", 43_200],
    ["soon", undefined],
    ["", undefined],
    [null, undefined],
  ]) {
    assert.equal(waitOf(header, now), seconds, header);
  }
});

test("other failures of the receiver may pass", async () => {
  for (const status of [408, 425, 500, 502]) await assert.rejects(deliver(says(status)), { name: "Undelivered" });
  await assert.rejects(deliver((response) => response.destroy()), { name: "Undelivered", message: /^no answer: / });
});

test("what the receiver refuses is dead-lettered with the begin of its answer", async () => {
  await assert.rejects(deliver(says(422, `no\n such ${"ü".repeat(1000)}`)), (error) => {
    assert.ok(error instanceof DeadLetter);
    assert.match(error.message, /^the receiver said 422: no such ü+$/);
    return error.message.length < 230;
  });
  await assert.rejects(deliver(says(302, "", { location: url })), DeadLetter);
});

test("an answer that does not come is waited for as long as there is time", async () => {
  const begin = Date.now();
  component({}, { remainingMs: () => 700n, shouldStop: () => false });
  await assert.rejects(deliver(() => {}), { message: "no answer in time" });
  // A body that never ends is not read to its end, and one that stalls counts as no answer.
  await assert.rejects(deliver((response) => response.writeHead(500).write("x".repeat(300))), /the receiver said 500: x+$/);
  await assert.rejects(deliver((response) => response.writeHead(500).write("x")), { message: "no answer in time" });
  component({}, { remainingMs: () => 60_000n, shouldStop: () => true });
  await assert.rejects(deliver(() => {}), { message: "no answer in time" });
  // Without these two it would have been 10 s for each.
  assert.ok(Date.now() - begin < 10_000);
  server.closeAllConnections();
});
