"""The coordinator's server: eight Fleet calls behind mutual TLS, with pulls that wait until there is a question."""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any

import uvicorn
from fastapi import HTTPException, Request
from starlette.concurrency import run_in_threadpool

from fedra.errors import RunError
from fedra.federation.flower.calls import Call, Calls
from fedra.federation.flower.gate import Gate
from fedra.federation.flower.link_state import LinkState
from fedra.federation.flower.node_sessions import REPLACED, SESSION_HEADER, NodeSessions
from fedra.federation.flower.private_names import load

HELD = 20.0
"""Seconds for which a pull waits for a question; Flower's client waits 30."""
LOOK = 5.0
CLOSING = 0.01
"""Seconds that closed connections get to say so."""
FEW_OBJECTS = 16
"""Objects of an answer in addition to those that its tensors are cut into."""

handlers = load("fleet_handlers")


class Arrivals:
    """What the server tells its link: signs of life, sessions that began or were replaced, answers and refused ones."""

    def __init__(
        self,
        seen: Callable[[int], None],
        began: Callable[[int], None],
        replaced: Callable[[int], None],
        complete: Callable[[str], None],
        refused: Callable[[str, str], None],
    ):
        self.seen, self.began, self.replaced = seen, began, replaced
        self.complete, self.refused = complete, refused


class FleetServer:
    """Serves sites in a thread of its own."""

    def __init__(self, links: LinkState, arrivals: Arrivals, is_open: Callable[[str], bool]) -> None:
        self._links, self._arrivals, self._is_open = links, arrivals, is_open
        self._events: dict[int, asyncio.Event] = {}
        self._delivered: dict[int, Any] = {}
        self._awaited: dict[str, tuple[str, set[str]]] = {}
        self._sessions = NodeSessions()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self.address = ("", 0)
        self.most_objects = FEW_OBJECTS

    def start(self, host: str, port: int, context: ssl.SSLContext) -> None:
        """Listen; raises if the port is taken."""
        logging.getLogger("flwr").setLevel(logging.CRITICAL)
        config = uvicorn.Config(
            Gate(self._app(), self._links.folder),
            host=host,
            port=port,
            log_level="critical",
            lifespan="off",
            ws="none",
            interface="asgi3",
            timeout_keep_alive=120,
            access_log=False,
            server_header=False,
        )
        config.load()
        config.ssl = context
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="fedra-fleet", daemon=True)
        self._thread.start()
        until = time.monotonic() + 20
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > until:
                raise RunError(f"the coordinator must be able to listen on {host}:{port}: the port is taken, or closed")
            time.sleep(0.01)
        self.address = self._server.servers[0].sockets[0].getsockname()[:2]

    def _serve(self) -> None:
        assert self._server is not None
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            try:
                runner.run(self._serve_until_closed(self._server))
            except SystemExit:  # uvicorn's way to say that it cannot listen
                return

    async def _serve_until_closed(self, server: uvicorn.Server) -> None:
        """Serve, and close the connections that wait for questions, which uvicorn leaves open."""
        await server.serve()
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(CLOSING)

    def wake(self, node: int) -> None:
        """Let a waiting pull of a node look for a question."""
        if self._loop is not None and node in self._events:
            self._loop.call_soon_threadsafe(self._events[node].set)

    def close(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.should_exit = self._server.force_exit = True
            for node in list(self._events):
                self.wake(node)
        if self._thread is not None:
            self._thread.join(timeout=10)

    def _app(self) -> Calls:
        state, seen = self._links.state, self._arrivals.seen

        def pull_object(request: Any, http: Request) -> Any:
            seen(request.node.node_id)
            return handlers.pull_object(request, state)

        def confirm(request: Any, http: Request) -> Any:
            self._delivered.pop(request.node.node_id, None)
            return handlers.confirm_message_received(request, state, state.object_store)

        def beat(request: Any, http: Request) -> Any:
            seen(request.node.node_id)
            return handlers.send_node_heartbeat(request, state)

        def push_object(request: Any, http: Request) -> Any:
            seen(request.node.node_id)
            answer = handlers.push_object(request, state)
            if answer.stored:
                self._strike_out(request.session_id, request.object_id)
            return answer

        calls = {
            "activate-node": Call(
                load("ActivateNodeRequest"), lambda request, http: self._activate(request, _session_of(http))
            ),
            "deactivate-node": Call(
                load("DeactivateNodeRequest"), lambda request, http: handlers.deactivate_node(request, state)
            ),
            "send-node-heartbeat": Call(load("SendNodeHeartbeatRequest"), beat),
            "pull-messages": Call(load("PullMessagesRequest"), self._hold, holds=True),
            "pull-object": Call(load("PullObjectRequest"), pull_object),
            "confirm-message-received": Call(load("ConfirmMessageReceivedRequest"), confirm),
            "push-messages": Call(load("PushMessagesRequest"), lambda request, http: self._push(request)),
            "push-object": Call(load("PushObjectRequest"), push_object),
        }
        return Calls(calls, self._links.factory, self._refuse_replaced)

    def _refuse_replaced(self, request: Any, http: Request) -> None:
        """Refuse the calls of a process whose place another one with the same key has taken."""
        if "node" in request.DESCRIPTOR.fields_by_name:
            self._check_session(request.node.node_id, _session_of(http))

    def _check_session(self, node: int, session: str) -> None:
        if self._sessions.is_replaced(node, session):
            self._arrivals.replaced(node)
            raise HTTPException(409, REPLACED)

    def _activate(self, request: Any, session: str) -> Any:
        """Begin a node's session: of two processes with one key the later one speaks, and the other one is refused."""
        state = self._links.state
        node = state.get_node_id_by_public_key(request.public_key)
        if node is None:
            raise HTTPException(403, "this site is not admitted, or no longer")
        self._check_session(node, session)
        self._sessions.begin(node, session)
        state.deactivate_node(node)  # a node that died takes its session over at once
        answer = handlers.activate_node(request, state)
        self._delivered.pop(node, None)
        self._arrivals.began(node)
        self.wake(node)  # a pull that the replaced process left waiting
        return answer

    async def _hold(self, request: Any, http: Request) -> Any:
        """Answer a pull when there is a question, or after 20 seconds without one."""
        node, state = request.node.node_id, self._links.state
        event = self._events.setdefault(node, asyncio.Event())
        until = time.monotonic() + HELD
        while True:
            if not await http.is_disconnected():  # a killed process does not count as a second one
                self._check_session(node, _session_of(http))
                self._arrivals.seen(node)
            if node in self._delivered:  # the connection broke before the node had it
                return self._delivered[node]
            event.clear()
            found = await run_in_threadpool(
                self._links.locked, lambda: handlers.pull_messages(request, state, state.object_store)
            )
            if found.messages_list:
                self._delivered[node] = found
                return found
            if time.monotonic() > until or (self._server is not None and self._server.should_exit):
                return found
            try:
                await asyncio.wait_for(event.wait(), LOOK)
            except TimeoutError:
                continue

    def _push(self, request: Any) -> Any:
        """Take the announcement of an answer: of the node itself, to an open question, with no more than it needs."""
        node = request.node.node_id
        self._arrivals.seen(node)
        if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
            raise HTTPException(400, "one answer at a time")
        about = request.messages_list[0].metadata
        if about.src_node_id != node:
            raise HTTPException(403, "a site answers for itself alone")
        question = about.reply_to_message_id
        if not self._is_open(question):
            raise HTTPException(410, "the question is not open anymore")
        count = sum(1 for _ in load("iterate_object_tree")(request.message_object_trees[0]))
        if count > self.most_objects:
            reason = f"an answer must have at most {self.most_objects:,} objects, got {count:,}"
            self._arrivals.refused(question, reason)
            raise HTTPException(413, reason)
        answer = handlers.push_messages(request, self._links.state)
        missing = set(answer.objects_to_push)
        if missing:
            self._awaited[answer.session_id] = (question, missing)
        else:
            self._arrivals.complete(question)
        return answer

    def _strike_out(self, session: str, name: str) -> None:
        question, missing = self._awaited.get(session, ("", set()))
        missing.discard(name)
        if question and not missing:
            del self._awaited[session]
            self._arrivals.complete(question)


def _session_of(http: Request) -> str:
    return http.headers.get(SESSION_HEADER, "")[:64]
