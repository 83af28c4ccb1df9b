"""Dialects beside the native API: by their names, and from other packages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi import APIRouter
from fastapi.testclient import TestClient

from onetray.config import BUILT_IN_DIALECTS
from onetray.dialects import __path__ as dialect_folders
from onetray.dialects.kit import Dialect, DialectRoute
from onetray.dialects.so1 import DIALECT as SO1
from onetray.domain.errors import InvalidInput
from onetray.http.app import build
from onetray.http.auth.scopes import Principal, Reader
from onetray.http.dialects import check_dialects, load_dialect
from onetray.http.json_answers import Json
from onetray.http.services import HttpConfig
from tests.support.cases import each_case
from tests.support.engines import engine_on

BASE = "http://127.0.0.1"


def test_every_dialect_of_the_package_is_built_in() -> None:
    [folder] = dialect_folders
    assert {path.parent.name for path in Path(folder).glob("*/__init__.py")} == set(BUILT_IN_DIALECTS)
    assert [load_dialect(name).name for name in BUILT_IN_DIALECTS] == list(BUILT_IN_DIALECTS)


def test_a_dialect_that_is_not_there_is_named_with_those_that_are() -> None:
    with engine_on("sqlite://:memory:") as engine, pytest.raises(InvalidInput, match="'so2': use so1"):
        build(engine, HttpConfig(dialects=("so2",)))


@each_case("name", BUILT_IN_DIALECTS)
def test_a_dialect_is_served_where_it_is_chosen_and_has_a_description_of_its_own(name: str) -> None:
    dialect = load_dialect(name)
    path: str = next(r.path for r in dialect.router.routes if "GET" in r.methods and "{" not in r.path)  # type: ignore[attr-defined]
    with engine_on("sqlite://:memory:") as engine:
        for dialects, status in (((name,), 200), ((), 404), (("none",), 404)):
            with TestClient(build(engine, HttpConfig(dialects=dialects)), base_url=BASE) as api:
                assert api.get(path).status_code == status
                native = api.get("/api/v1/openapi.json").json()["paths"]
                assert not [path for path in native if path.startswith(f"{dialect.prefix}/")]
                own = api.get(f"/api/v1/openapi/{name}.json")
                assert own.status_code == status
                if status == 200:
                    assert {str(r.path) for r in dialect.router.routes} == set(own.json()["paths"])  # type: ignore[attr-defined]


def a_dialect(name: str, prefix: str, path: str = "") -> Dialect:
    router = APIRouter(prefix=prefix, route_class=DialectRoute)

    @router.get(path or "/jobs")
    async def jobs(principal: Principal = Reader) -> Json:
        return Json(name)

    return Dialect(name, prefix, router, lambda problem, *_: Json({name: problem["code"]}, problem["status"]), "", "")


@each_case("prefix", ["", "/", "v1", "/api", "/api/v1", "/api/v1/more", "/v1/"])
def test_a_prefix_leaves_the_native_api_alone(prefix: str) -> None:
    with pytest.raises(ValueError, match=r"must be a path outside of /api/v1"):
        Dialect("x", prefix, APIRouter(), lambda *_: Json({}), "", "")


def test_a_route_is_below_the_prefix_and_checks_what_all_routes_check() -> None:
    with pytest.raises(ValueError, match=r"/api/jobs is not below the prefix /api/job"):
        Dialect("x", "/api/job", SO1.router, SO1.shape, "", "")
    router = APIRouter(prefix="/v1")
    router.get("/jobs")(lambda: "open")
    with pytest.raises(TypeError, match="set route_class"):
        Dialect("x", "/v1", router, SO1.shape, "", "")


V1, V1_MORE, V1_AGAIN = a_dialect("v1", "/v1"), a_dialect("more", "/v1/more"), a_dialect("again", "/v1")


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Installs packages that have nothing but an entry point."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(package: str, **values: str) -> None:
        info = tmp_path / f"{package.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"{name} = {value}\n" for name, value in values.items()]
        (info / "entry_points.txt").write_text(f"[onetray.dialects]\n{''.join(lines)}")

    return install


def test_the_longest_prefix_decides_which_dialect_answers_an_error(offer: Callable[..., None]) -> None:
    offer("pack", v1=f"{__name__}:V1", more=f"{__name__}:V1_MORE")
    with engine_on("sqlite://:memory:") as engine:
        for names in (("v1", "more"), ("more", "v1", "more")):
            with TestClient(build(engine, HttpConfig(dialects=names)), base_url=BASE) as api:
                assert (api.get("/v1/jobs").json(), api.get("/v1/more/jobs").json()) == ("v1", "more")
                assert api.get("/v1/morel").json() == {"v1": "no_such_route"}
                assert api.get("/v1/more/x").json() == {"more": "no_such_route"}
                assert api.get("/v1/more/jobs?x=1").json() == {"more": "invalid_input"}
                assert api.get("/v2").json()["code"] == "no_such_route"


def test_a_package_whose_dialect_is_no_good_is_named(offer: Callable[..., None]) -> None:
    offer("broken-pack", gone="no_such_module:DIALECT", text=f"{__name__}:BASE", other=f"{__name__}:V1")
    offer("pack", v1=f"{__name__}:V1", again=f"{__name__}:V1_AGAIN", twice=f"{__name__}:V1")
    offer("pack-too", twice=f"{__name__}:V1_AGAIN", so1="no_such_module:DIALECT")
    for names, message in {
        ("gone",): "'gone' of the package broken-pack cannot be imported from no_such_module:DIALECT: ModuleNotFound",
        ("text",): "'text' of the package broken-pack is a str: .* must be a Dialect",
        ("other",): "'other' of the package broken-pack calls itself 'v1'",
        ("twice",): "the packages (pack and pack-too|pack-too and pack) both offer a dialect 'twice'",
        ("v1", "again"): "v1 and again both use /v1",
        (
            "none",
            "so1",
        ): "there is no dialect 'none': use so1, jobnik, pipeline, again, gone, other, text, twice, v1, or none",
    }.items():
        with pytest.raises(InvalidInput, match=message) as refused:
            check_dialects(names)
        assert refused.value.facts["field"] == "dialects"
    assert check_dialects(("so1", "v1", "so1")) == ("so1", "v1")
