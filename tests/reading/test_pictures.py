"""Lives as pictures: well-formed, with full values on hover, and no value as markup."""

from xml.etree import ElementTree as ET

from told_lives import CORRECTED, NOW, told

from backstory.reading.drawings import picture
from backstory.reading.lives import Lane, lanes

SVG = "{http://www.w3.org/2000/svg}"


def seen(life, telling=("v",), columns=("v", "same"), title="crm.customer k=k"):
    return ET.fromstring(picture(life, telling, columns, NOW, title))


def texts(tree):
    return ["".join(each.itertext()) for each in tree.iter(f"{SVG}text")]


def hovers(tree):
    return [each.find(f"{SVG}title").text for each in tree.iter(f"{SVG}g")]


def test_a_row_for_each_column_and_a_bar_for_each_stretch_of_a_value():
    tree = seen([Lane(told("Almaty[0,20)\nAstana[20,50)\nAstana[70,)"))], telling=("v", "same"))
    assert texts(tree) == [
        "crm.customer k=k",
        "2024-01-01",
        "2024-01-21",
        "2024-02-20",
        "2024-03-11",
        *("v", "Almaty", "Astana", "Astana"),
        *("same", "1", "1"),
    ]
    assert hovers(tree)[:4] == [
        "v: Almaty\nfrom 2024-01-01 00:00:00 to 2024-01-21 00:00:00",
        "gone from 2024-02-20 00:00:00 to 2024-03-11 00:00:00",
        "v: Astana\nfrom 2024-01-21 00:00:00 to 2024-02-20 00:00:00",
        "v: Astana\nfrom 2024-03-11 00:00:00 on",
    ]
    assert len(list(tree.iter(f"{SVG}line"))) == 4 + 2


def test_v97_a_row_for_each_known_time_and_what_was_new_is_marked():
    tree = seen(lanes(told(CORRECTED)))
    bars = [each.get("class") for each in tree.iter(f"{SVG}polygon")]
    assert [text for text in texts(tree) if text.startswith("known")] == [
        f"known 2024-01-0{number}" for number in (2, 3, 4)
    ]
    assert bars == ["one news", "one news", "two news", "one news", "three news", "two"]


def test_values_are_text_and_never_markup():
    evil = "</text><script>alert(1)</script>&\"'\x00\x0b"
    drawn = picture([Lane(told(f"{evil}[0,)"))], ["v"], ["v"], NOW, evil)
    tree = ET.fromstring(drawn)
    assert "<script" not in drawn
    assert [each.tag for each in tree.iter() if "script" in each.tag] == []
    assert tree.find(f"{SVG}title").text.startswith("</text><script>alert(1)</script>&")


def test_it_is_self_contained_and_readable_in_light_and_dark():
    drawn = picture([Lane(told("a[0,)"))], ["v"], ["v"], NOW, "t")
    assert "prefers-color-scheme: dark" in drawn
    assert drawn.count("http") == 1  # the name of the format, which nobody fetches
    assert "url(" not in drawn


def test_a_record_of_many_columns_and_one_of_none_are_drawn():
    wide = told("a[0,)")[0] | {f"c{number}": number for number in range(40)}
    tree = seen([Lane([wide])], telling=[f"c{number}" for number in range(40)])
    assert texts(tree)[-1] == "… and 24 more"
    assert texts(seen([], title="nothing")) == ["nothing"]
