"""The tables that the package ships."""

from pathlib import Path

import pytest

from pai_torchacc import calibration

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
        table = calibration.find(model, isa, is_limited=False, path=None)
        assert table.name.partition("+")[0] == family
        assert table.least_ratio == calibration.FASTER
