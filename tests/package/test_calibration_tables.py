"""The tables that the package ships."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pai_torchacc as ptac
from pai_torchacc import _C, calibration
from pai_torchacc.__main__ import main
from pai_torchacc.bench import calibrate

TABLES = sorted(Path(calibration.__file__).parent.glob("*.csv"))


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_the_short_way_reads_what_the_checked_way_does(path: Path) -> None:
    checked = calibration.read(path)
    assert len(checked) > 100
    assert calibration.read_shipped(path) == checked


def test_there_are_tables() -> None:
    assert {"generic-avx2", "generic-avx512"} <= {path.stem for path in TABLES}


def test_every_family_has_its_table() -> None:
    """Also one that leaves nothing to the generic table."""
    families = [path.stem for path in TABLES if not path.stem.startswith("generic")]
    assert families
    for family in families:
        vendor, number, *isa = family.split("-")
        model, isa = f"{vendor}-{number}-1", isa[0] if isa else "avx512"
        table = calibration.find(model, isa, is_limited=False)
        assert table.name.partition("+")[0] == family
        assert table.least_ratio == calibration.FASTER


def test_a_row_that_is_far_slower_is_no_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which the table's reader would refuse."""
    case = SimpleNamespace(
        op="mm", kind="nn", dtype="float32", work=(8, 8, 8), variants=[lambda: None]
    )
    monkeypatch.setattr(calibrate, "_may_be_named", lambda *_: True)
    monkeypatch.setattr(calibrate, "_time_rows", lambda *_: {"scalar": (0.001, 9.0)})
    (m,) = calibrate._measure_case(None, case, ["scalar"], 1, 1, 0.0)
    assert 0 < m.ratio == calibrate.LEAST_RATIO


def of_a_gpu(folder: Path) -> Path:
    path = folder / "gpu.csv"
    columns = ",".join(calibration.CUDA_COLUMNS)
    line = "linear_act,train_act,float16,8x16x32,cuda,1.25,80.5"
    path.write_text(f"# cpu: any\n# device: Some GPU \n{columns}\n{line}\n")
    return path


def test_a_spreadsheet_s_mark_is_none_of_the_table_s(tmp_path: Path) -> None:
    """Bytes that some programs put before text in UTF-8."""
    marked, plain = tmp_path / "marked.csv", TABLES[0]
    marked.write_bytes(b"\xef\xbb\xbf" + plain.read_bytes())
    assert calibration.read(marked) == calibration.read(plain)


def test_a_table_of_a_gpu(tmp_path: Path) -> None:
    path = of_a_gpu(tmp_path)
    table = calibration.read_table(path)
    assert table.device == "Some GPU"
    place = "linear_act", "train_act", "float16", 1, (8, 16, 32)
    assert table.measurements == [calibration.Measurement(*place, "cuda", 1.25, 80.5)]
    with pytest.raises(ValueError, match="is of a GPU: Some GPU"):
        calibration.read(path)


@pytest.mark.skipif(not _C.cuda_reason(), reason="there is CUDA")
def test_without_cuda_it_decides_nothing(tmp_path: Path) -> None:
    path = of_a_gpu(tmp_path)
    with ptac.enable():
        [own] = re.findall(r"\bcalibration (?!table)(.+)", ptac.report())
    with ptac.enable(calibration=path):
        assert f"calibration {own}; on CUDA {path}, of Some GPU\n" in ptac.report()
        assert f"{path} is of Some GPU: {_C.cuda_reason()}" in ptac.report()
        assert "cuda_table" not in ptac.status()["operator_fusion"]


def test_measuring_a_cpu_keeps_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = of_a_gpu(tmp_path)
    before = path.read_text()
    with pytest.raises(SystemExit):
        main(["calibrate", str(path), "--ops", "sgd_step"])
    assert f"{path} is of Some GPU" in capsys.readouterr().err
    assert path.read_text() == before


def test_measuring_some_kinds_keeps_the_others(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    lines = [
        calibration.Measurement(op, kind, "float32", 1, 1, "avx2", 2.0, 1.0)
        for op, kind in (("conv2d", "1x1_16"), ("conv2d", "3x3_16"), ("mish", "any"))
    ]
    calibrate.write(path, lines, ["of here"])
    chosen = calibrate.Chosen(frozenset(["conv2d"]), ("1x1*",))
    others, remarks = calibrate.kept(path, chosen, None)
    assert others == lines[1:]
    assert "kinds not named there: of here" in remarks
    assert calibrate.kept(path, None, None) == ([], [])


def test_measuring_some_rows_keeps_the_others(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    old = [
        calibration.Measurement("mean", "rows", "float32", 1, 1, row, 2.0, 1.0)
        for row in ("avx2", "scalar")
    ]
    calibrate.write(path, old, [])
    only = calibrate.chosen(["mean"], None, ["sca*"])
    assert only is not None
    others, remarks = calibrate.kept(path, only, None)
    assert others == old[:1]
    assert any(remark.startswith("rows not named there") for remark in remarks)
    measured = calibrate.measure(None, only, blocks=1, block_s=0)
    assert {next(measured).row for _ in range(3)} == {"scalar"}


def test_info_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = of_a_gpu(tmp_path)
    monkeypatch.setenv("PTAC_CALIBRATION", str(path))
    assert main(["info"]) == 0
    assert f"; on CUDA {path}, of Some GPU\n" in capsys.readouterr().out


Line = calibration.Measurement
GRADIENT = "conv2d_backward"


def line(
    op: str, kind: str, row: str = "one", ratio: float = 2.0, work: int = 1
) -> Line:
    return Line(op, kind, "float32", 1, work, row, ratio, 10.0)


def decided(
    lines: list[Line], level: str = "close"
) -> set[tuple[str, str | None, int]]:
    """Of every kind that there is: the row, and where it was measured."""
    rows = [("one", level, True, False), ("two", "close", True, False)]
    operators = [(name, kinds, rows) for name, kinds, _ in _C.operators()]
    table = calibration.Table("t", lines, calibration.FASTER)
    found, _ = calibration.points(table, operators, "close")
    return {(kind, row, work) for _, kind, _, _, work, row, *_ in found}


def test_divided_kinds_are_todays() -> None:
    kinds = {name: set(kinds) for name, kinds, _ in _C.operators()}
    for kind, parts in calibration.DIVIDED.items():
        assert set(parts) <= kinds["conv2d"]
        assert {f"{x}_{g}" for x in parts for g in ("data", "weight")} <= kinds[
            GRADIENT
        ]
        assert kind in parts or kind not in kinds["conv2d"]


@pytest.mark.parametrize("kind", calibration.DIVIDED)
def test_what_was_measured_of_a_divided_kind_is_said_of_its_parts(kind: str) -> None:
    parts = calibration.DIVIDED[kind]
    assert decided([line("conv2d", kind)]) == {(part, "one", 1) for part in parts}
    for side in ("data", "weight"):
        of_gradient = decided([line(GRADIENT, f"{kind}_{side}")])
        assert of_gradient == {(f"{part}_{side}", "one", 1) for part in parts}


@pytest.mark.parametrize("own", calibration.DIVIDED["strided"])
def test_a_part_with_lines_of_its_own_is_told_no_more(own: str) -> None:
    """Of that row: of others it still is."""
    whole = line("conv2d", "strided", work=7)
    told = decided([whole, line("conv2d", own, ratio=0.5)])
    assert {at for at in told if at[0] == own} == {(own, None, 1)}
    assert len(told) == len(calibration.DIVIDED["strided"])
    told = decided([whole, line("conv2d", own, "two")])
    assert {at for at in told if at[0] == own} == {(own, "two", 1), (own, "one", 7)}


def test_a_kind_that_kept_its_name_speaks_for_itself() -> None:
    both = [line("conv2d", "other", work=7), line("conv2d", "other_few", ratio=0.5)]
    assert decided(both) == {("other", "one", 7), ("other_few", None, 1)}


def test_rows_above_the_level_say_nothing_of_parts() -> None:
    assert decided([line("conv2d", "1x1")], level="fast") == set()


@pytest.mark.parametrize("op", ["int8_conv2d", "depthwise_conv2d"])
def test_kinds_of_other_operators_are_as_they_were(op: str) -> None:
    assert decided([line(op, "other")]) == {("other", "one", 1)}


def test_what_amx_gained_is_said_of_cpus_with_amx() -> None:
    rows = [("bf16", "fast", True, False), ("two", "close", True, False)]
    operators = [("mm", ["nn"], rows)]
    measured = [line("mm", "nn", "bf16", 3.0), line("mm", "nn", "two", 1.2)]
    shared = calibrate.generic(measured, "avx512", has_amx=True)
    assert shared == [
        line("mm", "nn", "bf16", 1.0),
        line("mm", "nn", "two", 1.2),
        line("mm", "nn", "bf16+amx", 3.0),
    ]
    assert calibrate.generic(measured, "avx2", has_amx=True) == shared[:2]
    assert calibrate.generic(measured, "avx512") == shared[:2]
    table = calibration.Table("t", shared, calibration.FASTER_ELSEWHERE)
    for level, has_amx, row in (
        ("fast", True, "bf16"),
        ("fast", False, "two"),
        ("close", True, "two"),
    ):
        found, _ = calibration.points(table, operators, level, has_amx=has_amx)
        assert [point[5] for point in found] == [row]


@pytest.mark.parametrize("suffix", ["", "+amx"])
def test_places_of_rows_above_the_level(suffix: str) -> None:
    """A place that lines of AMX alone have would say that stock is faster there."""
    rows = [("bf16", "fast", True, False), ("two", "close", True, False)]
    lines = [line("mm", "nn", "two", work=1), line("mm", "nn", "bf16" + suffix, work=2)]
    lines += [line("mm", "nt", "bf16" + suffix)]

    def decided(level: str) -> list[tuple[str, Any, str | None]]:
        table = calibration.Table("t", lines, calibration.FASTER)
        operators = [("mm", ["nn", "nt"], rows)]
        found, _ = calibration.points(table, operators, level, has_amx=True)
        return [(kind, work, row) for _, kind, _, _, work, row, *_ in found]

    assert decided("fast") == [("nn", 1, "two"), ("nn", 2, "bf16"), ("nt", 1, "bf16")]
    stocks = [] if suffix else [("nn", 2, None)]
    assert decided("close") == [("nn", 1, "two"), *stocks, ("nt", 1, None)]


def test_rows_that_are_amx_s_alone_are_for_cpus_with_it() -> None:
    rows = [("amx", "exact", True, False), ("vnni", "exact", True, False)]
    operators = [("int8_linear", ["m32_up"], rows)]
    measured = [
        line("int8_linear", "m32_up", "amx", 5.0),
        line("int8_linear", "m32_up", "vnni", 3.0),
    ]
    shared = calibrate.generic(measured, "avx512", has_amx=True)
    assert shared == [measured[1], line("int8_linear", "m32_up", "amx+amx", 5.0)]
    table = calibration.Table("t", shared, calibration.FASTER_ELSEWHERE)
    for has_amx, row in ((True, "amx"), (False, "vnni")):
        found, _ = calibration.points(table, operators, "close", has_amx=has_amx)
        assert [point[5] for point in found] == [row]


def test_a_family_s_table_is_completed_by_kinds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "_HERE", tmp_path)
    own = [line("conv2d", "3x3_16", ratio=1.06), line("conv2d", "3x3_32", ratio=0.5)]
    kinds = "3x3_16", "3x3_32", "3x3_64", "3x3_128"
    others = [
        line(op, kind, "two", ratio, 7)
        for op, kind, ratio in (
            *zip(["conv2d"] * 4, kinds, (3.0, 3.0, 1.2, 1.1), strict=True),
            ("conv2d_backward", "3x3_16_data", 0.5),
        )
    ]
    calibrate.write(tmp_path / "Somebody-1.csv", own, [])
    calibrate.write(tmp_path / "generic-lanes.csv", others, [])
    table = calibration.find("Somebody-1-2", "lanes", is_limited=False)
    assert table.name == "Somebody-1+generic-lanes"
    assert table.least_ratio == calibration.FASTER
    assert decided(table.measurements) == {
        ("3x3_16", "one", 1),
        ("3x3_32", None, 1),
        ("3x3_64", "two", 7),
        ("3x3_128", None, 7),  # too little for what another CPU measured
        ("3x3_16_data", None, 7),
    }
    limited = calibration.find("Somebody-1-2", "lanes", is_limited=True)
    assert limited.name == "generic-lanes"
    assert limited.least_ratio == calibration.FASTER_ELSEWHERE
    assert limited.measurements == sorted(others)


def test_generic_tables_have_no_row_that_is_never_chosen() -> None:
    levels = {
        (op, row): level
        for op, _, rows in _C.operators()
        for row, level, _, _ in rows
    }  # fmt: skip
    for path in TABLES:
        if path.stem.startswith("generic"):
            shipped = calibration.read_shipped(path)
            assert calibrate.fastest(shipped, levels) == shipped


def test_the_fastest_row_of_each_level() -> None:
    levels = {("conv2d", row): "close" for row in ("one", "two")}
    levels["conv2d", "half"] = "fast"
    lines = [
        line("conv2d", "3x3_16", "one", 1.2),
        line("conv2d", "3x3_16", "two", 1.3),
        line("conv2d", "3x3_16", "half", 0.5),
        line("conv2d", "3x3_16", "of another version", 0.1),
        line("conv2d", "3x3_16", "two", 0.7, work=7),
        line("conv2d", "3x3_16", "one", 0.8, work=7),
    ]
    kept = calibrate.fastest(lines, levels)
    assert kept == [lines[i] for i in (1, 2, 3, 5)]
