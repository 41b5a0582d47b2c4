"""The tables that the package ships."""

import re
from pathlib import Path

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


def test_info_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = of_a_gpu(tmp_path)
    monkeypatch.setenv("PTAC_CALIBRATION", str(path))
    assert main(["info"]) == 0
    assert f"; on CUDA {path}, of Some GPU\n" in capsys.readouterr().out
