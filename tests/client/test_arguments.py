"""Arguments and results: typed values on both sides, JSON in between."""

import inspect
import math
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, Field

from onetray import InvalidInput, JobFailed, Onetray
from onetray.app.signature import Signature
from onetray.testing import Harness

MISSING = object()


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Address(BaseModel):
    street: str
    number: int = Field(ge=1)


@dataclass
class Parcel:
    to: Address
    colours: list[Colour]
    weight: Decimal | None = None


NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
HOME = Address(street="Quay", number=4)
VALUES = [
    pytest.param(int, 3, id="int"),
    pytest.param(str, "zwölf\n", id="str"),
    pytest.param(str | None, None, id="optional"),
    pytest.param(bytes, b"raw", id="bytes"),
    pytest.param(datetime, NOON, id="datetime"),
    pytest.param(date, date(2024, 5, 1), id="date"),
    pytest.param(timedelta, timedelta(minutes=1.5), id="timedelta"),
    pytest.param(Decimal, Decimal("1.10"), id="decimal"),
    pytest.param(UUID, UUID(int=7), id="uuid"),
    pytest.param(Colour, Colour.BLUE, id="enum"),
    pytest.param(Literal["a", "b"], "b", id="literal"),
    pytest.param(tuple[int, str], (1, "x"), id="tuple"),
    pytest.param(set[int], {1, 2}, id="set"),
    pytest.param(Address, HOME, id="model"),
    pytest.param(Parcel, Parcel(HOME, [Colour.RED], Decimal("2.5")), id="dataclass"),
    pytest.param(dict[str, list[Address]], {"ann": [HOME]}, id="nested"),
    pytest.param(Any, {"free": [1, None, "x"]}, id="any"),
]


@pytest.mark.parametrize(("type_", "value"), VALUES)
def test_a_value_arrives_and_comes_back_as_it_was(app: Onetray, harness: Harness, type_: Any, value: Any) -> None:
    seen = []

    def same(x):
        seen.append(x)
        return x

    same.__annotations__ = {"x": type_, "return": type_}
    job = app.task(same).submit(x=value)
    harness.drain()
    back = job.result(0)
    assert seen == [value] == [back]
    assert type(seen[0]) is type(value) is type(back)


def test_a_model_survives_every_database(app: Onetray, anywhere: Harness) -> None:
    @app.task
    def send(parcel: Parcel, at: datetime, *, note: str | None = None) -> Parcel:
        assert (type(parcel), at, note) == (Parcel, NOON, None)
        return parcel

    job = send.submit(Parcel(HOME, [Colour.BLUE]), NOON)
    anywhere.drain()
    assert job.result(0) == Parcel(HOME, [Colour.BLUE])
    assert app.job(job.id).result(0) == Parcel(HOME, [Colour.BLUE])


def test_an_argument_may_be_left_out_that_has_a_default(app: Onetray, harness: Harness) -> None:
    @app.task
    def greet(name: str = "ann", *, loud: bool = False) -> str:
        return name.upper() if loud else name

    jobs = [greet.submit(), greet.submit("bob"), greet.submit(loud=True)]
    harness.drain()
    assert [job.result(0) for job in jobs] == ["ann", "bob", "ANN"]
    assert [job.view().payload for job in jobs] == [{}, {"name": "bob"}, {"loud": True}]


def test_a_function_without_types_takes_what_is_json(app: Onetray, harness: Harness) -> None:
    @app.task
    def anything(a, b=2):
        return [a, b]

    job = anything.submit({"x": [1]})
    harness.drain()
    assert job.result(0) == [{"x": [1]}, 2]


BAD_CALLS = [
    pytest.param((), {}, "street: Field required", id="missing"),
    pytest.param(
        (), {"street": "Quay", "number": 1, "town": "X"}, "town: Extra inputs are not permitted", id="unknown"
    ),
    pytest.param((), {"street": "Quay", "number": "many"}, "number: Input should be a valid integer", id="type"),
    pytest.param(("Quay", 1, 2, 3), {}, "takes 3 arguments, not 4", id="overflow"),
    pytest.param(("Quay",), {"street": "Lane", "number": 1}, "street is passed twice", id="twice"),
]


@pytest.mark.parametrize(("args", "kwargs", "told"), BAD_CALLS)
def test_a_bad_call_is_refused_before_anything_is_written(
    app: Onetray, harness: Harness, args: Any, kwargs: Any, told: str
) -> None:
    @app.task
    def find(street: str, number: int, limit: int = 1) -> None: ...

    with pytest.raises(InvalidInput, match=told) as raised:
        find.submit(*args, **kwargs)
    assert "find" in str(raised.value)
    assert harness.engine.tasks() == []


def test_a_refusal_says_which_field_and_what_the_function_takes(app: Onetray, harness: Harness) -> None:
    @app.task
    def find(address: Address) -> None: ...

    with pytest.raises(InvalidInput, match=r"address\.number: .*greater than or equal to 1.* It takes address:") as e:
        find.submit(address={"street": "Quay", "number": 0})
    assert e.value.field == "address"


def test_a_value_of_no_known_type_is_refused(app: Onetray, harness: Harness) -> None:
    @app.task
    def free(x) -> None: ...

    for value in (object(), Lock(), [float("nan")], 2**70, "\ud800", {1: {2: object()}}):
        with pytest.raises(InvalidInput, match="JSON"):
            free.submit(x=value)
    assert harness.engine.tasks() == []


def test_a_result_that_is_no_number_is_refused(app: Onetray, harness: Harness) -> None:
    @app.task
    def free():
        return [float("inf")]

    job = free.submit()
    harness.drain()
    with pytest.raises(JobFailed, match="no NaN and no Infinity"):
        job.result(0)


def test_a_type_that_cannot_be_json_is_named(app: Onetray, harness: Harness) -> None:
    class Opaque: ...

    @app.task
    def take(x: Opaque) -> None: ...

    with pytest.raises(InvalidInput, match=r"take has a type that cannot be encoded as JSON.*Opaque"):
        take.submit(x=Opaque())


def test_a_type_that_cannot_be_found_is_named(app: Onetray, harness: Harness) -> None:
    @app.task
    def take(x: "Nowhere") -> None: ...  # noqa: F821

    with pytest.raises(InvalidInput, match=r"take: a type hint cannot be resolved.*Nowhere"):
        take.submit(x=1)


@pytest.mark.parametrize(
    "make",
    [lambda: lambda *args: None, lambda: lambda **kw: None, lambda: lambda x, /: None],
    ids=["args", "kw", "pos"],
)
def test_a_parameter_without_a_name_of_its_own_is_refused(app: Onetray, make: Any) -> None:
    with pytest.raises(InvalidInput, match="declare each argument by name"):
        app.task(kind="loose")(make())


def test_a_result_that_is_not_what_the_function_says_fails_it_for_good(app: Onetray, harness: Harness) -> None:
    @app.task(retries=5)
    def count() -> int:
        return "many"  # type: ignore[return-value]

    job = count.submit()
    assert harness.drain() == 1
    with pytest.raises(JobFailed, match=r"count returned a value that does not match its return type: .*valid integer"):
        job.result(0)


def test_a_payload_that_does_not_fit_any_more_is_set_aside(app: Onetray, harness: Harness) -> None:
    @app.task
    def send(to: str) -> None: ...

    harness.engine.submit("send", {"whom": "ann"})
    harness.engine.submit("send", [1, 2])
    assert harness.drain() == 2
    assert [letter.reason_code for letter in harness.engine.dead_letters()] == ["validation_failed"] * 2


class Adder:
    def __call__(self, n: int, by: int = 1) -> int:
        return n + by


@pytest.mark.parametrize(
    "function", [Adder(), Adder().__call__, partial(Adder(), by=1)], ids=["object", "method", "partial"]
)
def test_whatever_can_be_called_has_its_types_found(app: Onetray, harness: Harness, function: Any) -> None:
    add = app.task(kind="add")(function)
    job = add.submit(n=1)
    harness.drain()
    assert job.result(0) == 2
    with pytest.raises(InvalidInput, match="n: Input should be a valid integer"):
        add.submit(n="one")


def test_called_as_a_function_a_task_just_runs(app: Onetray) -> None:
    @app.task
    def double(n: int) -> int:
        return 2 * n

    assert double(4) == 8


@pytest.mark.parametrize(
    "payload",
    [{"a": "x"}, {"a": 1, "b": 2}, {}, {"a": None}, {"a": 1.5}],
    ids=["text", "one too many", "missing", "null", "a fraction"],
)
def test_arguments_that_are_not_plainly_right_are_checked_in_full(payload: dict[str, object]) -> None:
    def work(a: int) -> None: ...

    signature = Signature(work, "work")
    with pytest.raises(InvalidInput):
        signature.arguments(payload)


def test_plain_arguments_are_passed_as_they_are_and_others_are_converted() -> None:
    def work(a: int, b: float, c: str) -> None: ...

    signature = Signature(work, "work")
    assert signature.arguments({"a": 1, "b": 0.5, "c": "x"}) == {"a": 1, "b": 0.5, "c": "x"}
    converted = signature.arguments({"a": 1, "b": 2, "c": "x"})
    assert type(converted["b"]) is float


BULK = """
import sys
from onetray import Onetray
app = Onetray("sqlite:///" + sys.argv[1])

@app.task
def noop(number: int, name: str) -> None: ...

assert len(noop.submit_many([{"number": n, "name": "ann"} for n in range(3)])) == 3
print(*sys.modules)
"""


def test_a_bulk_submit_of_plain_arguments_does_not_import_pydantic(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BULK, str(tmp_path / "jobs.db")], capture_output=True, text=True, check=True
    )
    assert "onetray.engine" in done.stdout.split()
    assert "pydantic" not in done.stdout.split()


class Name(str):
    __slots__ = ()


def _priced(number: int, name: str, price: float, urgent: bool = False) -> None: ...


def _named(number: int, name: str, urgent: bool = False) -> None: ...


ODD = [
    pytest.param({}, id="nothing odd"),
    pytest.param({"number": True}, id="bool for int"),
    pytest.param({"number": 2.0}, id="whole float for int"),
    pytest.param({"number": 2.5}, id="float for int"),
    pytest.param({"number": "12"}, id="text for int"),
    pytest.param({"number": None}, id="None for int"),
    pytest.param({"number": 2**63}, id="int over 63 bits"),
    pytest.param({"number": -(10**40)}, id="huge int"),
    pytest.param({"price": 3}, id="int for float"),
    pytest.param({"price": math.nan}, id="NaN"),
    pytest.param({"price": math.inf}, id="infinity"),
    pytest.param({"name": Name("ann")}, id="subclass of str"),
    pytest.param({"name": b"ann"}, id="bytes for str"),
    pytest.param({"name": 7}, id="int for str"),
    pytest.param({"name": "zwölf\0"}, id="not ASCII"),
    pytest.param({"urgent": 1}, id="int for bool"),
    pytest.param({"urgent": True}, id="a default that is set"),
    pytest.param({"name": MISSING}, id="missing"),
    pytest.param({"town": "X"}, id="extra"),
]


@pytest.mark.parametrize("function", [_priced, _named])
@pytest.mark.parametrize("odd", ODD)
def test_plain_arguments_are_taken_as_those_that_pydantic_checks(function: Any, odd: dict[str, Any]) -> None:
    parameters = {"number": 1, "name": "ann", "price": 1.5, "urgent": False}
    usual = {name: parameters[name] for name in inspect.signature(function).parameters}
    call = {name: value for name, value in (usual | odd).items() if value is not MISSING}
    if function is _named and "price" in odd:
        call.pop("price")
    quick, checked = Signature(function, "f"), Signature(function, "f")
    # With no plain types, every argument goes through pydantic.
    checked.__dict__["_plain_types"] = None
    without_default = {name: value for name, value in call.items() if name != "urgent"}
    for calls in ([call], [usual, call], [call, usual, without_default]):
        assert _exactly(quick.payloads(calls)) == _exactly(checked.payloads(calls))
    for args, kwargs in _ways(quick, call):
        assert _taken(quick, args, kwargs) == _taken(checked, args, kwargs)


def _ways(signature: Signature, call: dict[str, Any]) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """A call by keyword, by position, both, and an argument twice."""
    first, *rest = call
    by_position = tuple(call[name] for name in signature.parameters if name in call)
    return [
        ((), call),
        (by_position, {}),
        ((call[first],), {name: call[name] for name in rest}),
        ((call[first],), call),
    ]


def _taken(signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return _exactly([signature.payload(args, kwargs)])
    except InvalidInput as e:
        return str(e), e.facts


def _exactly(payloads: list[dict[str, Any]] | None) -> Any:
    """With the types of the values, in text: True equals 1, and NaN not even itself."""
    return payloads and [sorted((name, type(v), repr(v)) for name, v in payload.items()) for payload in payloads]


def test_the_payloads_of_a_bulk_submit_are_copies() -> None:
    calls = [{"number": 1, "name": "ann", "urgent": False}]
    payloads = Signature(_named, "f").payloads(calls)
    assert payloads == calls
    assert payloads[0] is not calls[0]
