import io
import multiprocessing
from pathlib import Path

import pytest
from PIL import Image

from loaderbench.errors import ConfigError
from loaderbench.images.index import index_images
from loaderbench.images.manifest import (
    BUNDLED_MANIFESTS,
    default_dataset,
    find_manifests,
    generated_root,
    read_manifest,
    resolve_dataset,
)
from loaderbench.images.variants import find_variants


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder outside the checkout, and a data folder of its own."""
    monkeypatch.setenv("LOADERBENCH_DATA", str(tmp_path / "kept"))
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    return tmp_path / "cwd"


def make_tree(root: Path) -> Path:
    file = io.BytesIO()
    Image.new("RGB", (20, 20)).save(file, "JPEG")
    for folder in ("cat", "dog"):
        (root / folder).mkdir(parents=True)
        (root / folder / "1.jpg").write_bytes(file.getvalue())
    return root


@pytest.fixture
def variants(tmp_path: Path) -> Path:
    for side in (256, 512):
        make_tree(tmp_path / "photos" / str(side))
    return tmp_path / "photos"


def test_a_plain_tree_is_read_as_it_is(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "plain")
    assert resolve_dataset(str(tree)) == (str(tree), "plain")
    assert resolve_dataset("../plain") == (str(tree), "plain")


def test_res_chooses_the_variant(variants: Path) -> None:
    assert resolve_dataset(str(variants), 512) == (str(variants / "512"), "photos")
    assert len(index_images(resolve_dataset(str(variants), 256)[0])) == 2


def test_a_variant_that_is_not_there_names_those_that_are(variants: Path) -> None:
    with pytest.raises(ConfigError, match="no variant 777; it has 256, 512") as caught:
        resolve_dataset(str(variants), 777)
    assert caught.value.exit_code == 2 and "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="choose one with --res: 256, 512"):
        resolve_dataset(str(variants))


def test_res_for_a_tree_without_variants_names_the_command_that_makes_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"loaderbench dataset derive .* --res 512 --out DIR"):
        resolve_dataset(str(make_tree(tmp_path / "plain")), 512)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"no data set 'imagnet'.*generated"):
        resolve_dataset("imagnet", 256)


def test_a_manifest_names_a_tree_and_its_variants(
    variants: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (elsewhere / "datasets").mkdir()
    monkeypatch.setenv("PHOTOS", str(variants))
    (elsewhere / "datasets" / "mine.toml").write_text('name = "mine"\nroot = "$PHOTOS"\n[variants]\n128 = "256"\n')
    assert resolve_dataset("mine", 128) == (str(variants / "256"), "mine")
    assert resolve_dataset("datasets/mine.toml", 128) == (str(variants / "256"), "mine")
    with pytest.raises(ConfigError, match="it has 128"):
        resolve_dataset("mine", 256)
    assert set(find_manifests()) == {"mine", "generated"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("root = 'x'\nrot = 1", "unknown entry 'rot'; did you mean root"),
        ("name = 'x'", "either root"),
        ("root = ", "the manifest bad.toml is not valid TOML"),
        ("root = 'x'\nname = 1", "name and description must be strings"),
        ("root = 'x'\n[variants]\n'²' = 'y'", "must map resolutions to folders"),
        (f"root = 'x'\n[variants]\n{'9' * 5000} = 'y'", "must map resolutions to folders"),
        (f"root = {'9' * 5000}", "is not valid TOML: it holds a number of more than 4,300 digits"),
        (f"root = {'[' * 5000}", "is not valid TOML: it is nested too deeply"),
        ("root = 'x'\n[variants]\nbig = 'y'", "must map resolutions to folders"),
        ("root = '/not/there'", "does not exist"),
    ],
)
def test_a_bad_manifest_is_one_clear_line(elsewhere: Path, text: str, message: str) -> None:
    (elsewhere / "bad.toml").write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        resolve_dataset("bad.toml", 256)
    assert "\n" not in str(caught.value)


def test_the_generated_set_is_made_on_first_use_and_kept(tmp_path: Path, elsewhere: Path) -> None:
    (elsewhere / "datasets").mkdir()
    (elsewhere / "datasets" / "generated.toml").write_text("[generate]\nresolutions = [32, 64]\nnum_images = 12\n")
    path, name = resolve_dataset(None, 32)
    assert (path, name) == (str(tmp_path / "kept" / "generated" / "32"), "generated")
    assert len(index_images(path)) == 12
    assert list(find_variants(tmp_path / "kept" / "generated")) == [32]
    assert resolve_dataset("generated", 32) == (path, name)
    with pytest.raises(ConfigError, match="no variant 48; it has 32, 64"):
        resolve_dataset(None, 48)
    with pytest.raises(ConfigError, match="choose one with --res: 32, 64"):
        resolve_dataset()


def test_two_processes_may_ask_for_the_default_set_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    both = [context.Process(target=default_dataset, args=([48], 60)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
    assert [process.exitcode for process in both] == [0, 0]
    assert len(index_images(str(tmp_path / "kept" / "generated-60-images" / "48"))) == 60


def test_where_generated_sets_are_kept(tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert generated_root() == tmp_path / "kept"
    monkeypatch.delenv("LOADERBENCH_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert generated_root() == tmp_path / "cache" / "loaderbench"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert generated_root() == tmp_path / "home" / ".cache" / "loaderbench"
    monkeypatch.chdir(Path(__file__).parents[2])
    assert generated_root() == Path(__file__).parents[2] / "datasets"


def test_the_manifests_that_ship_are_sound() -> None:
    checkout = Path(__file__).parents[2] / "datasets"
    for file in [*BUNDLED_MANIFESTS.glob("*.toml"), *checkout.glob("*.toml")]:
        assert read_manifest(file).name == file.stem
    assert read_manifest(checkout / "generated.toml") == read_manifest(BUNDLED_MANIFESTS / "generated.toml")
