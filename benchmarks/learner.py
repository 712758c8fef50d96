"""A learner on a JupyterHub, played by a program: logs in, opens notebooks, runs cells, checks
exercises, moves a panel. It speaks to the hub as JupyterLab does, over HTTP and websockets.

It draws nothing: what a browser does on the learner's own machine is not in any number from here.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import quote

import requests
from websocket import (
    WebSocket,
    WebSocketConnectionClosedException,
    WebSocketException,
    WebSocketTimeoutException,
    create_connection,
)

PATIENCE = 1200.0  # seconds for one cell; twelve learners share two cores
CONTROLS = {
    "SelectionSliderModel": "index",
    "DropdownModel": "index",
    "IntSliderModel": "value",
    "ToggleButtonModel": "value",
    "ButtonModel": "",  # which is pressed
}
Message = dict[str, Any]


class KernelDied(Exception):
    """The kernel has ended, or does not answer."""


@dataclass
class Reply:
    """What came of a cell: seconds until all of it had arrived, the error's name or "", the text
    that it printed.
    """

    seconds: float
    error: str
    text: str
    first_update: float | None = None  # seconds to a panel's new view


@dataclass
class Kernel:
    """A notebook that a learner has open, with its kernel."""

    id: str
    session: str
    connect: Callable[[], WebSocket]
    models: dict[str, Message] = field(default_factory=dict)  # the widgets' states, by comm

    def __post_init__(self) -> None:
        self.socket = self.connect()

    def run(self, code: str) -> Reply:
        """Run a cell to its end. Raises KernelDied."""
        content = {
            "code": code,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": False,
        }
        return self._ask("execute_request", content)

    def wait(self) -> None:
        """Wait until the kernel answers at all."""
        self._ask("kernel_info_request", {})

    def move(self) -> float | None:
        """Move the first control of the notebook's panel that changes its view, or else press the
        first such button; return the seconds until the new view has come, or None if there is none.
        """
        kinds = list(CONTROLS)
        models = [one for one in self.models.items() if one[1].get("_model_name") in kinds]
        for comm, model in sorted(models, key=lambda one: one[1]["_model_name"] == kinds[-1]):
            if model.get("disabled"):
                continue
            data: Message = {"method": "custom", "content": {"event": "click"}}
            if trait := CONTROLS[model["_model_name"]]:
                model[trait] = _other(model, trait)
                data = {"method": "update", "state": {trait: model[trait]}, "buffer_paths": []}
            reply = self._ask("comm_msg", {"comm_id": comm, "data": data})
            if reply.first_update is not None:
                return reply.first_update
        return None

    def _ask(self, kind: str, content: Message) -> Reply:
        number, began = uuid.uuid4().hex, time.perf_counter()
        header = {
            "msg_id": number,
            "session": self.session,
            "username": "",
            "date": "",
            "msg_type": kind,
            "version": "5.3",
        }
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content}
        self.socket.send(json.dumps({**message, "channel": "shell", "buffers": []}))
        reply, missing = Reply(0, "", ""), {"idle"}
        missing |= set() if kind == "comm_msg" else {"reply"}
        while missing:
            heard = self._receive()
            if heard["parent_header"].get("msg_id") != number:
                continue
            missing -= self._take(heard, reply, began)
        reply.seconds = time.perf_counter() - began
        return reply

    def _receive(self) -> Message:
        try:
            raw = self.socket.recv()
        except (WebSocketException, OSError) as error:
            raise KernelDied(str(error)) from error
        if not raw:
            raise KernelDied("its socket was closed")
        if isinstance(raw, bytes):  # a message with buffers: the JSON comes after their offsets
            count = int.from_bytes(raw[:4], "big")
            ends = [int.from_bytes(raw[4 * i : 4 * i + 4], "big") for i in range(1, count + 1)] + [
                len(raw)
            ]
            raw = raw[ends[0] : ends[1]].decode()
        heard: Message = json.loads(raw)
        if heard["msg_type"] == "status" and "restart" in heard["content"]["execution_state"]:
            raise KernelDied(heard["content"]["execution_state"])
        return heard

    def answer_pings(self) -> None:
        """Read what came while nobody asked. The server closes a socket that answers no ping; then
        connect again, as JupyterLab does.
        """
        self.socket.settimeout(0.01)
        try:
            while self.socket.recv():
                pass
        except WebSocketTimeoutException:
            pass
        except WebSocketConnectionClosedException:
            self.socket = self.connect()
        finally:
            self.socket.settimeout(PATIENCE)

    def _take(self, heard: Message, reply: Reply, began: float) -> set[str]:
        """Note a message in the reply; return what of the reply is now complete."""
        kind, content = heard["msg_type"], heard["content"]
        if kind == "status" and content["execution_state"] == "idle":
            return {"idle"}
        if kind.endswith("_reply"):
            return {"reply"}
        if kind == "stream" and content["name"] == "stdout":
            reply.text += content["text"]
        elif kind == "error":
            reply.error = f"{content['ename']}: {content['evalue'][:200]}"
        elif kind == "comm_open":
            self.models[content["comm_id"]] = dict(content["data"].get("state", {}))
        elif kind == "comm_msg" and content["data"].get("method") == "update":
            state = content["data"]["state"]
            model = self.models.setdefault(content["comm_id"], {})
            model.update(state)
            if model.get("_model_name") == "HTMLModel" and "value" in state:
                reply.first_update = reply.first_update or time.perf_counter() - began
        return set()


def _other(model: Message, trait: str) -> Any:
    """Return another value for a control than it has."""
    now = model[trait]
    if isinstance(now, bool):
        return not now
    if trait == "index":
        return (now or 0) - 1 if now else 1
    step = model.get("step", 1)
    return now + step if now + step <= model["max"] else now - step


class Learner:
    """Someone with a name who takes the course on a hub."""

    def __init__(self, hub: str, name: str, password: str) -> None:
        self.hub, self.name, self._password = hub, name, password
        self.server = f"{hub}/user/{quote(name)}"
        self.web = requests.Session()
        self.kernels: dict[str, Kernel] = {}

    def log_in(self) -> None:
        """Log in by the form and have the server started, as the browser does; return when it
        answers.
        """
        self.web.get(f"{self.hub}/hub/login").raise_for_status()
        form = {"username": self.name, "password": self._password, "_xsrf": self._xsrf()}
        answer = self.web.post(f"{self.hub}/hub/login", data=form, allow_redirects=False)
        if answer.status_code != 302:
            raise RuntimeError(f"{self.name} was not let in: {answer.status_code}")
        self.web.get(f"{self.hub}/hub/home").raise_for_status()
        me = f"{self.hub}/hub/api/users/{quote(self.name)}"
        own = {"X-XSRFToken": self._xsrf(), "Referer": f"{self.hub}/hub/home"}
        made = self.web.post(f"{me}/tokens", json={}, headers=own)
        made.raise_for_status()
        self.web = requests.Session()  # a token from here on
        self.web.headers["Authorization"] = f"token {made.json()['token']}"
        if (asked := self.web.post(f"{me}/server")).status_code != 400:  # 400: it runs already
            asked.raise_for_status()
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            if (self.web.get(me).json().get("servers") or {}).get("", {}).get("ready"):
                return
            time.sleep(0.2)
        raise RuntimeError(f"the server of {self.name} did not start")

    def open(self, path: str) -> Kernel:
        """Open a notebook, such as "notebooks/06_loop.ipynb", with a kernel; return when it
        answers.
        """
        self.ask("GET", f"contents/{path}?content=1&type=notebook")
        body = {
            "path": path,
            "name": path.rpartition("/")[2],
            "type": "notebook",
            "kernel": {"name": "python3"},
        }
        made = self.ask("POST", "sessions", json=body)["kernel"]["id"]
        session = uuid.uuid4().hex
        address = self.server.replace("http", "ws", 1)
        connect = partial(
            create_connection,
            f"{address}/api/kernels/{made}/channels?session_id={session}",
            header=[f"Authorization: {self.web.headers['Authorization']}"],
            timeout=PATIENCE,
        )
        kernel = self.kernels[path] = Kernel(made, session, connect)
        kernel.wait()
        return kernel

    def save(self, path: str, notebook: Message) -> None:
        """Save a notebook, as JupyterLab does by itself every two minutes."""
        self.ask("PUT", f"contents/{path}", json={"type": "notebook", "content": notebook})

    def poll(self) -> None:
        """Do what an open JupyterLab does every ten seconds."""
        for kernel in self.kernels.values():
            kernel.answer_pings()
        for what in ("sessions", "kernels", "terminals", "contents/notebooks?content=1"):
            self.ask("GET", what)

    def close(self) -> None:
        """Shut all kernels down."""
        for kernel in self.kernels.values():
            kernel.socket.close()
            self.ask("DELETE", f"kernels/{kernel.id}")
        self.kernels.clear()

    def ask(self, method: str, what: str, **more: Any) -> Any:
        """Send a request to the learner's server; return its JSON."""
        answer = self.web.request(method, f"{self.server}/api/{what}", timeout=PATIENCE, **more)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def _xsrf(self) -> str:
        found = [one.value for one in self.web.cookies if one.name == "_xsrf"]
        return found[-1] if found else ""


def check_of(source: str) -> tuple[str, str] | None:
    """Return the exercise's name and its check as an assertion: "exercises.f.check(f)" →
    ("f", 'assert exercises.f.check(f).state == "correct"'); None if the cell has no check.
    """
    found = re.search(r"^exercises\.(\w+)\.check\((.+)\)\s*$", source, re.MULTILINE)
    if not found:
        return None
    name, answer = found.groups()
    return name, f'assert exercises.{name}.check({answer}).state == "correct"'
