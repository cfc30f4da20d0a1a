"""What stands between Heddle and a script in Python: how it is called, how it ends, and what `ctx` is."""

import base64
import builtins
import dataclasses
import datetime
import decimal
import enum
import gc
import importlib
import importlib.machinery
import inspect
import io
import json
import linecache
import logging
import math
import pathlib
import random
import re
import sys
import time
import traceback
import types
import typing
import uuid

from _heddle import call as _call

# What the host does. The numbers are those of `calls.rs`.
_LOG, _RESULT, _SYNC, _DESCRIPTION, _NESTING, _WAIT, _INPUT = 0, 1, 2, 5, 6, 7, 8
_FILE = "script.py"
_MAX_CAUSES = 5

_script = None
# What drives `async` functions, once it is read.
_asyncio = None

# The reader of JSON recurses without looking at its stack: what nests too deep would end the run in a trap.
_MAX_NESTING = 2000
# What is longer may not fit into one call of the host.
_MAX_LOOKED_AT = 8_000_000
_read = json.JSONDecoder.raw_decode
# Whatever a script does to the module, what is ours goes on.
_parse, _dump, _Encoder = json.loads, json.dumps, json.JSONEncoder


def _read_bounded(self, s, idx=0):
    if _MAX_NESTING < len(s) < _MAX_LOOKED_AT and int(_call(_NESTING, _clean(s))) > _MAX_NESTING:
        raise RecursionError(f"JSON may nest {_MAX_NESTING} deep, and this nests deeper")
    return _read(self, s, idx)


json.JSONDecoder.raw_decode = _read_bounded
_scan = json.JSONDecoder().scan_once


def _loads(text):
    """What the host wrote, which is bounded."""
    return _scan(text, 0)[0]


def _ask(op, fields):
    """A call that is answered: at once, or when the node has an answer."""
    message = _dump({**fields, "op": op, "id": 0})
    kind = _SYNC if op in _AT_ONCE else _WAIT
    answer = _loads(_call(kind, message))
    if answer["error"] is not None:
        raise HeddleError(answer["error"])
    return answer["ok"]


_AT_ONCE = {"state.set", "state.delete", "enqueue", "notify", "progress", "log", "zone", "zones"}


class HeddleError(Exception):
    """Heddle refused what a script asked for."""


class Fatal(Exception):
    """Will never go better: not retried."""


class Retry(Exception):
    """May go better: retried, not before `after` (seconds, or such as "1h30m") has passed."""

    after = None

    def __init__(self, message="", after=None):
        super().__init__(message)
        # What it cannot be is an error in the line that says it.
        _millis(after)
        self.after = after


class Skip(Exception):
    """There is nothing to do."""


# ---- HTTP --------------------------------------------------------------------------------------------------------------


class Headers(dict):
    """Names of headers have no case (RFC 9110, 5.1): they are kept in lower case and found in any."""

    def __getitem__(self, name):
        return super().__getitem__(str(name).lower())

    def __contains__(self, name):
        return super().__contains__(str(name).lower())

    def get(self, name, default=None):
        return super().get(str(name).lower(), default)


class Response:
    """An answer to a request."""

    def __init__(self, answer):
        self.status = answer["status"]
        self.reason = answer["status_text"]
        self.url = answer["url"]
        self.headers, self.pairs = Headers(), _parse(answer["headers"])
        for name, value in self.pairs:
            self.headers[name] = f"{self.headers[name]}, {value}" if name in self.headers else value
        text, encoded = answer["text"], answer["base64"]
        self.content = text.encode() if text is not None else base64.b64decode(encoded)

    @property
    def ok(self):
        return 200 <= self.status < 300

    @property
    def text(self):
        """By the charset that the answer names. Without one that Python has, it is UTF-8."""
        charset = "utf-8"
        for part in self.headers.get("content-type", "").split(";")[1:]:
            name, _, value = part.partition("=")
            if name.strip().lower() == "charset":
                charset = value.strip().strip("\"'")
        try:
            return self.content.decode(charset, "replace")
        except (LookupError, ValueError):
            return self.content.decode("utf-8", "replace")

    def json(self):
        return _parse(self.content)

    def __repr__(self):
        return f"<Response {self.status} {self.url}>"


def fetch(url, method="GET", headers=None, data=None, json=None, redirect="follow", timeout=None):
    """Sends a request, as the task's `allow_hosts` and the node's policy admit it. `redirect`: or "manual", "error".
    `timeout`: seconds for the whole exchange, 600 at most and if it is left out."""
    pairs = [(str(name), str(value)) for name, value in dict(headers or {}).items()]
    names = {name.lower() for name, _ in pairs}
    if json is not None:
        if data is not None:
            raise TypeError("fetch takes `data` or `json`, not both")
        data = _dumps(json)
        if "content-type" not in names:
            pairs.append(("content-type", "application/json"))
    method = str(method).upper()
    if method in ("GET", "HEAD") and data is not None:
        raise TypeError(f"a {method} request has no body")
    return _send(str(url), method, pairs, data, redirect, timeout)


def _send(url, method, pairs, data, redirect, timeout=None):
    body = {"text": None, "base64": None}
    if timeout is not None:
        if not timeout > 0:
            raise ValueError("a timeout is more than 0 seconds")
        body["timeout_ms"] = max(1, round(min(timeout, 600) * 1000))
    if isinstance(data, str):
        body["text"] = data
    elif data is not None:
        body["base64"] = base64.b64encode(bytes(data)).decode()
    return Response(_ask("fetch", {"url": url, "method": method, "headers": pairs, "redirect": redirect, **body}))


def _method(name):
    def send(url, **options):
        return fetch(url, name, **options)

    send.__name__ = send.__qualname__ = name.lower()
    send.__doc__ = f"A {name} request: `headers`, `data` or `json`, `redirect`, `timeout` as `fetch` takes them."
    return send


# ---- Modules that are made to fit --------------------------------------------------------------------------------------


class _Fitted:
    """Finds the modules of the standard library that stand on what is not there, and has them stand on Heddle."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        fit = _FITS.get(name)
        spec = fit and importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec:
            spec.loader = _Loader(spec.loader, fit)
        return spec


class _Loader:
    def __init__(self, loader, fit):
        self._loader, self._fit = loader, fit

    def exec_module(self, module):
        self._loader.exec_module(module)
        self._fit(module)

    def __getattr__(self, name):
        return getattr(self._loader, name)


def _fit_zoneinfo(module):
    """Zones come from the host, which has no files of them."""

    def load_tzdata(key):
        found = _ask("zone", {"name": str(key)})
        if found is None:
            raise module.ZoneInfoNotFoundError(f"there is no time zone {key}")
        return io.BytesIO(base64.b64decode(found))

    module.load_tzdata = load_tzdata


def _fit_tzpath(module):
    """The names of zones come from the host, too."""
    module.available_timezones = lambda: set(_ask("zones", {}))


def _fit_urllib(module):
    """Requests go the way of `fetch`."""
    import http.client
    import urllib.error
    import urllib.response

    class Answer(urllib.response.addinfourl):
        """With what `http.client.HTTPResponse` has besides."""

        def getheader(self, name, default=None):
            return self.headers.get(name, default)

        def getheaders(self):
            return self.headers.items()

    class HTTPHandler(module.AbstractHTTPHandler):
        def http_open(self, req):
            headers = {**req.headers, **req.unredirected_hdrs}
            data = req.data
            if hasattr(data, "read"):
                data = data.read()
            elif data is not None and not isinstance(data, (bytes, bytearray, memoryview)):
                data = b"".join(data)
            timeout = req.timeout if isinstance(getattr(req, "timeout", None), (int, float)) else None
            try:
                answer = _send(req.full_url, req.get_method(), list(headers.items()), data, "manual", timeout)
            except HeddleError as refused:
                raise urllib.error.URLError(str(refused)) from None
            message = http.client.HTTPMessage()
            for name, value in answer.pairs:
                message.add_header(name, value)
            response = Answer(io.BytesIO(answer.content), message, req.full_url, answer.status)
            response.msg = response.reason = answer.reason
            return response

        https_open = http_open
        http_request = https_request = module.AbstractHTTPHandler.do_request_

    module.HTTPHandler = HTTPHandler
    if hasattr(module, "HTTPSHandler"):
        module.HTTPSHandler = HTTPHandler


def _fit_asyncio(module):
    """A loop that waits for time alone: there are no files to wait for, and what Heddle offers waits by itself."""

    class Selector:
        def select(self, timeout):
            if timeout is None:
                raise RuntimeError("what is awaited never comes: nothing is left that could go on")
            if timeout > 0:
                time.sleep(timeout)
            return []

        def close(self):
            pass

    class Loop(module.BaseEventLoop):
        def __init__(self):
            super().__init__()
            self._selector = Selector()

        def _process_events(self, events):
            pass

        def _write_to_self(self):
            pass

        def run_in_executor(self, executor, func, *args):
            # There are no threads: what others do in one is done here, before anything else goes on.
            future = self.create_future()
            try:
                future.set_result(func(*args))
            except Exception as thrown:
                future.set_exception(thrown)
            return future

    module.EventLoop = module.SelectorEventLoop = Loop
    module.events.new_event_loop = module.new_event_loop = module.runners.events.new_event_loop = Loop


_FITS = {
    "zoneinfo._common": _fit_zoneinfo,
    "zoneinfo._tzpath": _fit_tzpath,
    "urllib.request": _fit_urllib,
    "asyncio": _fit_asyncio,
}


# ---- The context -------------------------------------------------------------------------------------------------------


def _default(value):
    """JSON for what the standard library has no JSON for."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (decimal.Decimal, uuid.UUID, pathlib.PurePath)):
        return str(value)
    if isinstance(value, (set, frozenset)):
        return list(value)
    hint = ": `await` it first" if hasattr(value, "__await__") else ""
    raise TypeError(f"{type(value).__name__} is not JSON{hint}")


def _name(value, what):
    """A name or a key that a script gives, as text: numbers are keys, too, and so is what has a text of its own (a UUID, a date)."""
    has_text = isinstance(value, int) or type(value).__str__ is not object.__str__
    if has_text and not isinstance(value, bool):
        return str(value)
    raise TypeError(f"{what} is text, not {type(value).__name__}")


def _dumps(value):
    return _dump(value, cls=_Encoder, default=_default, allow_nan=False, ensure_ascii=False)


@dataclasses.dataclass(frozen=True)
class Interval:
    start: str
    end: str


def _state_key(key):
    return {"key": _name(key, "a key of the state")}


class State:
    """The group's key/value state: read as of now, written when this attempt succeeds and only then."""

    def get(self, key, default=None):
        found = _ask("state.get", _state_key(key))
        return default if found is None else _parse(found["value"])

    def entry(self, key):
        """`(value, version)`, or None."""
        found = _ask("state.get", _state_key(key))
        return None if found is None else (_parse(found["value"]), found["version"])

    def set(self, key, value):
        _ask("state.set", {**_state_key(key), "value": _dumps(value)})

    def delete(self, key):
        _ask("state.delete", _state_key(key))

    def compare_and_set(self, key, expected, value):
        """`expected` is a version, or None: the key does not exist."""
        _ask("state.compareAndSet", {**_state_key(key), "expected": expected, "value": _dumps(value)})


class Sql:
    """A database that the task was granted."""

    def __init__(self, connection):
        self._connection = _name(connection, "the name of a connection")

    def _send(self, op, statement, params):
        fields = {
            "connection": self._connection,
            "statement": _name(statement, "a statement"),
            "params": _dumps(list(params)),
        }
        return _ask(op, fields)

    def query(self, statement, *params):
        """The rows, each a dict."""
        return _parse(self._send("sql.query", statement, params))

    def execute(self, statement, *params):
        """How many rows the statement changed."""
        return self._send("sql.execute", statement, params)


class Context:
    """Who is running, for what, and what it may ask for."""

    def __init__(self, given):
        self.run = given["run"]
        self.group = given["group"]
        self.task = given["task"]
        self.attempt = given["attempt"]
        self.trigger = given["trigger"]
        self.logical_time = given["logical_time"]
        self.data_interval = Interval(given["data_interval"]["start"], given["data_interval"]["end"])
        self.deadline = given.get("deadline")
        item = given.get("item") or {}
        self.item, self.index, self.count = item.get("item"), item.get("index"), item.get("count")
        self.idempotency_key = given["idempotency_key"]
        self.state = State()

    def upstream(self, task):
        """The output of a task that this one depends on."""
        return _parse(_ask("upstream", {"task": _name(task, "the name of a task")}))

    def secret(self, name):
        """A secret that the task was granted."""
        return _ask("secret", {"name": _name(name, "the name of a secret")})

    def sql(self, connection):
        """A database that the task was granted."""
        return Sql(connection)

    def enqueue(self, group, params=None, key=None):
        """Makes a run of another group when this attempt succeeds."""
        key = None if key is None else _name(key, "`key`")
        _ask("enqueue", {"group": _name(group, "the name of a group"), "params": _dumps(params or {}), "key": key})

    def notify(self, channel, subject, body=""):
        """Sends a notification when this attempt succeeds."""
        _ask("notify", {"channel": _name(channel, "the name of a channel"), "subject": str(subject), "body": str(body)})

    def log(self, level, message, fields=None):
        """A line of the log; `fields` are what is to be found or counted by itself."""
        fields = None if fields is None else _dumps(fields)
        level = _name(level, "the level")
        _ask("log", {"level": level, "message": _clean(str(message)[:_MAX_LOOKED_AT]), "fields": fields})

    def progress(self, fraction, note=""):
        """From 0 to 1."""
        fraction = float(fraction)
        _ask("progress", {"fraction": fraction if math.isfinite(fraction) else None, "note": str(note)})

    fetch = staticmethod(fetch)


# ---- The log -----------------------------------------------------------------------------------------------------------


class _Lines:
    """A stream whose lines are lines of the log."""

    encoding, errors, newlines, closed = "utf-8", "replace", None, False

    def __init__(self, level):
        self._level, self._rest = level, ""

    def write(self, text):
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        *lines, self._rest = (self._rest + text).split("\n")
        if lines:
            _write(self._level, "\n".join(lines))
        return len(text)

    def writelines(self, lines):
        for line in lines:
            self.write(line)

    def flush(self):
        if self._rest:
            rest, self._rest = self._rest, ""
            _write(self._level, rest)

    def isatty(self):
        return False

    def writable(self):
        return True

    def readable(self):
        return False

    def seekable(self):
        return False

    def fileno(self):
        raise OSError("the log is no file")

    def close(self):
        self.flush()


_STREAMS = _Lines("2"), _Lines("3")


def _write(level, text):
    _call(_LOG, level + _clean(text[:_MAX_LOOKED_AT]))


class _Handler(logging.Handler):
    def emit(self, record):
        try:
            number = record.levelno
            level = "4" if number >= 40 else "3" if number >= 30 else "2" if number >= 20 else "1"
            _write(level, self.format(record))
        except Exception:
            self.handleError(record)


# ---- How a script ends -------------------------------------------------------------------------------------------------


def _message(thrown):
    try:
        text = str(thrown)
    except Exception:
        text = "<unprintable>"
    name = type(thrown).__name__
    if isinstance(thrown, (Fatal, Retry, Skip, HeddleError)) or type(thrown) is Exception:
        return text or name
    return f"{name}: {text}" if text else name


def _trace(thrown):
    told = traceback.TracebackException.from_exception(thrown, compact=True)
    at, seen = told, 0
    while at is not None and seen < _MAX_CAUSES:
        own = [frame for frame in at.stack if not frame.filename.startswith("heddle:")]
        # Neither what calls the script, nor the loop that drives it.
        first = next((number for number, frame in enumerate(own) if frame.filename == _FILE), 0)
        at.stack[:] = own[first:] or at.stack
        at, seen = at.__cause__ or at.__context__, seen + 1
    return _clean("".join(told.format())).rstrip()


def _clean(text):
    """The text, as UTF-8 can hold it: a string may have halves of characters."""
    return text.encode("utf-8", "replace").decode()


def _failure(thrown):
    kind, after = "failed", None
    trace = _trace(thrown)
    # A group of tasks wraps even a single error.
    while isinstance(thrown, BaseExceptionGroup) and len(thrown.exceptions) == 1:
        thrown = thrown.exceptions[0]
    if isinstance(thrown, Skip):
        kind = "skip"
    elif isinstance(thrown, Fatal):
        kind = "fatal"
    elif isinstance(thrown, Retry):
        try:
            after = _millis(thrown.after)
        except Exception as wrong:
            return _failure(wrong)
    return {"kind": kind, "message": _clean(_message(thrown)), "trace": trace, "after": after}


_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|m|h|d)\s*", re.ASCII)
_PARTS = re.compile(rf"\s*(?:{_PART.pattern})+", re.ASCII)
_MAX_MILLIS = 10**15


def _millis(after):
    if after is None:
        return None
    try:
        if isinstance(after, datetime.timedelta):
            millis = after.total_seconds() * 1000
        elif isinstance(after, str) and _PARTS.fullmatch(after):
            millis = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(after))
        else:
            millis = float(after) * 1000
        if 0 <= millis < _MAX_MILLIS:
            return int(millis)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(f'`after` is a number of seconds or a duration like "90s", not {after!r}')


def _invalid(message):
    return {"kind": "invalid", "message": message, "trace": None, "after": None}


def _output(value):
    if isinstance(value, types.GeneratorType) or inspect.isasyncgen(value):
        return _invalid("the output is a generator: `run` must not `yield`")
    # The writer of JSON recurses without looking at its stack: the host hears what it is that nests too deep.
    _call(_NESTING, "")
    try:
        text = _dumps(value)
        text.encode()
        return {"output": text}
    except RecursionError:
        return _invalid("the output cannot be written as JSON: it nests too deep")
    except Exception as wrong:
        return _invalid(f"the output cannot be written as JSON: {wrong}")


def _handled(said, count):
    if said is None:
        return {"outcomes": [None] * count}
    if not isinstance(said, (list, tuple)) or len(said) != count:
        return _invalid("`handle` gives nothing, or a list with an entry for each message")
    return {"outcomes": [_failure(one) if isinstance(one, BaseException) else None for one in said]}


# ---- Params and their schema -------------------------------------------------------------------------------------------


class _NoSchema(Exception):
    pass


_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null", dict: "object", list: "array", tuple: "array"}
_FORMATS = {datetime.datetime: "date-time", datetime.date: "date", datetime.time: "time", uuid.UUID: "uuid"}


def _schema(hint, seen=()):
    """What a type admits. What has no schema admits anything."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is typing.Any or hint is inspect.Parameter.empty or hint is object:
        return {}
    if origin is typing.Annotated:
        schema = _schema(arguments[0], seen)
        for note in arguments[1:]:
            if isinstance(note, str):
                schema = {**schema, "description": note}
        return schema
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        parts = [_schema(one, seen) for one in arguments]
        if any(part == {} for part in parts):
            return {}
        if all(set(part) == {"type"} and isinstance(part["type"], str) for part in parts):
            # (`list | tuple` is the same in JSON.)
            names = list(dict.fromkeys(part["type"] for part in parts))
            return {"type": names if len(names) > 1 else names[0]}
        return {"anyOf": parts}
    if origin in (typing.Required, typing.NotRequired, typing.Final, typing.ClassVar):
        return _schema(arguments[0], seen)
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    if hint in _FORMATS:
        return {"type": "string", "format": _FORMATS[hint]}
    if origin in (list, set, frozenset) or hint in (set, frozenset):
        schema = {"type": "array"}
        if arguments and (items := _schema(arguments[0], seen)):
            schema["items"] = items
        return schema
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return {"type": "array", "items": _schema(arguments[0], seen)}
        if hint is typing.Tuple or any(_is_rest(one) for one in arguments):
            return {"type": "array"}
        if not arguments:
            return {"type": "array", "maxItems": 0}
        return {"type": "array", "prefixItems": [_schema(one, seen) for one in arguments], "minItems": len(arguments), "maxItems": len(arguments)}
    if origin is dict:
        schema = {"type": "object"}
        if len(arguments) == 2 and (values := _schema(arguments[1], seen)):
            schema["additionalProperties"] = values
        return schema
    if hint in seen:
        return {}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {"enum": [member.value for member in hint]}
    if dataclasses.is_dataclass(hint):
        return _fields(hint, {field.name: field for field in dataclasses.fields(hint) if field.init}, seen)
    if typing.is_typeddict(hint):
        return _fields(hint, None, seen)
    return {}


def _is_rest(hint):
    """Whether it stands for any number of types, as `*tuple[int, ...]` does."""
    return typing.get_origin(hint) is typing.Unpack or getattr(hint, "__unpacked__", False) or isinstance(hint, typing.TypeVarTuple)


def _fields(cls, fields, seen):
    hints = typing.get_type_hints(cls, include_extras=True)
    properties, required = {}, []
    for name in fields if fields is not None else hints:
        schema = _schema(hints.get(name, typing.Any), (*seen, cls))
        if fields is None:
            if name in cls.__required_keys__:
                required.append(name)
        else:
            field = fields[name]
            if field.default is not dataclasses.MISSING:
                try:
                    schema = {**schema, "default": _parse(_dumps(field.default))}
                except Exception:
                    pass
            elif field.default_factory is dataclasses.MISSING:
                required.append(name)
            if description := field.metadata.get("description"):
                schema = {**schema, "description": str(description)}
        properties[name] = schema
    schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    if fields is not None:
        schema["additionalProperties"] = False
    doc = cls.__doc__
    if doc and not doc.startswith(f"{cls.__name__}("):
        schema["description"] = inspect.cleandoc(doc)
    return schema


def _shape(hint, value):
    """A value as its annotation has it: dataclasses, dates and enumerations are made of what JSON has for them."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _shape(arguments[0], value)
    if origin in (typing.Union, types.UnionType):
        for one in arguments:
            try:
                return _shape(one, value)
            except (TypeError, ValueError, KeyError):
                continue
        raise TypeError(f"{value!r} is nothing that it may be")
    if hint is type(None):
        if value is not None:
            raise TypeError("not null")
        return None
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise TypeError(f"{hint.__name__} is made of an object")
        hints = typing.get_type_hints(hint, include_extras=True)
        return hint(**{name: _shape(hints.get(name, typing.Any), one) for name, one in value.items()})
    if typing.is_typeddict(hint) and isinstance(value, dict):
        hints = typing.get_type_hints(hint)
        return {name: _shape(hints.get(name, typing.Any), one) for name, one in value.items()}
    if hint is datetime.datetime or hint is datetime.date or hint is datetime.time:
        return hint.fromisoformat(value)
    if hint is uuid.UUID or hint is decimal.Decimal:
        return hint(value)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint(value)
    if hint in (str, int, bool) and not isinstance(value, hint):
        raise TypeError(f"not {hint.__name__}")
    if origin in (list, set, frozenset, tuple) and isinstance(value, list):
        if not arguments or origin is tuple and any(_is_rest(one) for one in arguments):
            return origin(value)
        if origin is tuple and len(arguments) == len(value) and Ellipsis not in arguments:
            return tuple(_shape(one, item) for one, item in zip(arguments, value))
        return origin(_shape(arguments[0], item) for item in value)
    if origin is dict and len(arguments) == 2 and isinstance(value, dict):
        return {key: _shape(arguments[1], item) for key, item in value.items()}
    return value


# ---- Loading -----------------------------------------------------------------------------------------------------------


class _Entry:
    """`run` or `handle`: how many arguments it takes, and what its first one is."""

    def __init__(self, function):
        self.function, self.hint, self.arity = function, typing.Any, 2
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):
            return
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        positional = [one for one in signature.parameters.values() if one.kind in kinds]
        if not any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in signature.parameters.values()):
            self.arity = min(len(positional), 2)
        if positional:
            hints = typing.get_type_hints(function, include_extras=True)
            self.hint = hints.get(positional[0].name, typing.Any)

    def call(self, first, ctx):
        value = self.function(*(first, ctx)[: self.arity])
        return _finish(value) if inspect.isawaitable(value) else value


def _finish(awaitable):
    """Drives what an `async` function gave to its end. What it has begun and not awaited is cancelled."""
    return _asyncio.run(awaitable)


def _place(thrown):
    """Line and column of what a top level threw."""
    if isinstance(thrown, SyntaxError) and thrown.filename == _FILE:
        return thrown.lineno, thrown.offset
    found = (None, None)
    for frame in traceback.extract_tb(thrown.__traceback__):
        if frame.filename == _FILE:
            # Python counts the bytes of a line.
            before = linecache.getline(_FILE, frame.lineno).encode()[: frame.colno or 0]
            found = (frame.lineno, len(before.decode("utf-8", "ignore")) + 1)
    return found


def load():
    """Evaluates the script's top level and says what it is."""
    global _script
    source = _call(_INPUT, "")
    try:
        said = _load(source)
    except BaseException as thrown:
        line, column = _place(thrown)
        if isinstance(thrown, SyntaxError) and line is not None:
            error = thrown.msg
        else:
            error = f"its top level fails: {_message(thrown)}"
            if isinstance(thrown, ModuleNotFoundError):
                error += " (a script that is text has the standard library, and `heddle`)"
        said = {"error": _clean(error), "line": line, "column": column}
    _flush()
    # What is garbage now would be part of every run; what is not is never looked at again.
    gc.collect()
    gc.freeze()
    _call(_DESCRIPTION, _dump(said))


def _load(source):
    global _script
    lines = source.splitlines(True)
    linecache.cache[_FILE] = (len(source), None, lines, _FILE)
    module = types.ModuleType("script")
    module.__file__ = _FILE
    sys.modules["script"] = module
    code = compile(source, _FILE, "exec", dont_inherit=True)
    exec(code, module.__dict__)
    found = module.__dict__
    _script = {name: _Entry(found[name]) for name in ("run", "handle") if callable(found.get(name))}
    params = found.get("params")
    if params is None and "run" in _script:
        params = _schema(_script["run"].hint) or None
        if params is not None and params.get("type") != "object":
            params = None
    description = found.get("description", inspect.cleandoc(module.__doc__) if module.__doc__ else None)
    said = {"run": "run" in _script, "handle": "handle" in _script, "description": description, "params": params, "defaults": found.get("defaults")}
    try:
        return _parse(_dumps(said))
    except Exception as wrong:
        raise ValueError(f"`params`, `defaults` and `description` must be JSON: {wrong}") from None


def _forget():
    """As if no script had been loaded."""
    global _script
    _script = None
    del sys.modules["script"]
    linecache.clearcache()


# ---- Running -----------------------------------------------------------------------------------------------------------


_OVERWRITTEN = _dump(_failure(Exception("the script has overwritten what its end would be told with")))


def begin():
    """Runs the script once."""
    given = _loads(_call(_INPUT, ""))
    try:
        ended = _dump(_play(given))
        _flush()
    except BaseException:
        # All that is left is what needs nothing that a script can reach.
        ended = _OVERWRITTEN
    _call(_RESULT, ended)


def _flush():
    for stream in _STREAMS:
        stream.flush()


def _play(given):
    random.seed(int.from_bytes(b"".join(word.to_bytes(4, "little") for word in given["seed"])))
    try:
        ctx = Context(given["context"])
        if given["batch"] is not None:
            batch = types.SimpleNamespace(topic=given["batch"]["topic"], messages=[])
            for message in given["batch"]["messages"]:
                message["sender"], message["receiver"] = int(message["sender"]), int(message["receiver"])
                batch.messages.append(types.SimpleNamespace(**message))
            ended = _handled(_script["handle"].call(batch, ctx), len(batch.messages))
        else:
            entry = _script["run"]
            ended = _output(entry.call(_shaped(entry.hint, given["params"]), ctx))
    except _Unfit as wrong:
        ended = _invalid(str(wrong))
    except BaseException as thrown:
        ended = _failure(thrown)
    return ended


class _Unfit(Exception):
    pass


def _shaped(hint, params):
    if hint is typing.Any:
        return params
    try:
        return _shape(hint, params)
    except (TypeError, ValueError, KeyError) as wrong:
        raise _Unfit(f"the params are no {getattr(hint, '__name__', hint)}: {wrong}") from None


def _set_up():
    global _asyncio
    sys.stdout, sys.stderr = _STREAMS
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr
    logging.raiseExceptions = False
    logging.root.addHandler(_Handler())
    logging.root.setLevel(logging.DEBUG)
    offered = types.ModuleType("heddle", "What Heddle offers to scripts.")
    for one in (Fatal, Retry, Skip, HeddleError, Context, Response, fetch):
        one.__module__ = "heddle"
        setattr(offered, one.__name__, one)
    offered.http = types.ModuleType("heddle.http", "Requests, as the task's `allow_hosts` and the node's policy admit them.")
    offered.http.request = lambda method, url, **options: fetch(url, method, **options)
    for name in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"):
        setattr(offered.http, name.lower(), _method(name))
    offered.http.Response = Response
    offered.__path__ = []
    sys.modules["heddle.http"] = offered.http
    for one in (Fatal, Retry, Skip):
        setattr(builtins, one.__name__, one)
    sys.modules["heddle"] = offered
    sys.setrecursionlimit(1000)
    # Reading a module takes longer than most runs do: what scripts use is there already, also for an import in a function.
    sys.meta_path.insert(0, _Fitted)
    for name in _READ.split():
        importlib.import_module(name)
    _asyncio = sys.modules["asyncio"]
    # What the interpreter notes of code that has run belongs to the memory that all scripts share.
    for text in (_EXAMPLE, _EXAMPLE.replace("def run", "async def run")) * _WARM:
        _load(text)
        _play({"seed": [1, 2, 3, 4], "context": _CONTEXT, "params": {"name": "Ada"}, "batch": None})
    _forget()
    gc.collect()
    gc.freeze()


_WARM = 30
_EXAMPLE = '''"""An example."""
from dataclasses import dataclass

@dataclass
class Params:
    name: str
    n: int = 1

def run(params: Params, ctx):
    return {"name": params.name}
'''
_CONTEXT = {
    "run": "", "group": "", "task": "", "attempt": 1, "trigger": "manual", "logical_time": "", "deadline": None,
    "data_interval": {"start": "", "end": ""}, "item": None, "idempotency_key": "",
}

_READ = """
    _strptime argparse asyncio bisect calendar collections.abc concurrent.futures configparser contextlib copy csv difflib
    email.message email.mime.multipart email.mime.text email.policy encodings.ascii encodings.cp1252 encodings.idna
    encodings.latin_1 encodings.utf_16 encodings.utf_8_sig fractions functools graphlib gzip hashlib heapq hmac html.parser
    http.client http.cookies ipaddress itertools operator pprint secrets shlex sqlite3 statistics string struct textwrap
    tomllib unicodedata urllib.parse urllib.request xml.etree.ElementTree zipfile zlib zoneinfo
"""


_set_up()
