#!/usr/bin/env python3
"""Draws a report of `drift compare --stream --json`: acceptance over the tokens of the stream, the shifts marked.

usage: tools/picture.py REPORT.json STEM [--window TOKENS]
Writes STEM.html (one file that needs no network) and STEM.png (1200 x 640 at two pixels a point). All figures are the report's, but
for the interval: a paired 95 % bootstrap over prompts (10,000 resamples, fixed seed).
Lines: accepted / drafted over the last TOKENS tokens (512), begun anew at each shift, so that a fall is not smoothed over it.
Exit codes: 0 done; 1 the files cannot be written; 2 the report cannot be used; 3 the packages of tools/picture-requirements.txt are
not there (./dev setup installs them).
"""
import argparse
import dataclasses
import html
import json
import os
import sys

import compare_report

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
REPORT_BYTES_MAX = 256 << 20
POINTS_MAX = 100_000  # of one curve
MODES_MAX = 6  # as many colours as can be told apart
WIDTH, HEIGHT = 1200, 640
# Okabe and Ito's colours, which people with any colour vision can tell apart; the dash says it a second time.
STYLES = [("#D55E00", [6, 4]), ("#0072B2", [1, 0]), ("#009E73", [2, 2]), ("#CC79A7", [10, 3]), ("#E69F00", [8, 3, 2, 3]), ("#56B4E9", [4, 2])]
INK, FAINT = "#222222", "#6b6b6b"


class Unusable(Exception):
    """Why the report cannot be drawn, for the user."""


@dataclasses.dataclass
class Segment:
    domain: str
    points: range  # indices into a curve


@dataclasses.dataclass
class Mode:
    label: str
    kind: str  # static, drift, ...
    drafted: list  # per prompt
    accepted: list
    moving: list  # acceptance over the window, None where nothing was drafted

    def acceptance(self, points):
        drafted = sum(self.drafted[i] for i in points)
        return sum(self.accepted[i] for i in points) / drafted if drafted else None


@dataclasses.dataclass
class Stream:
    report: dict
    modes: list
    segments: list
    ids: list  # per prompt
    ends: list  # tokens generated up to a prompt's end: the mean over the drawn modes, whose texts may differ in length


# ------------------------------------------------------------------------------------------------------------- reading

def field(where, holder, name, kind):
    value = holder.get(name) if isinstance(holder, dict) else None
    good = isinstance(value, kind) and not (kind is int and isinstance(value, bool))
    if not good:
        words = {int: "a whole number", str: "a text", list: "a list", dict: "an object"}
        raise Unusable(f"{where}: the field \"{name}\" must be {words[kind]}" if value is not None else f"{where}: the field \"{name}\" is missing")
    return value


def read(path, window):
    try:
        if os.path.getsize(path) > REPORT_BYTES_MAX:
            raise Unusable(f"larger than {REPORT_BYTES_MAX} bytes")
        with open(path, encoding="utf-8") as file:
            report = json.load(file, parse_constant=lambda word: None)
    except OSError as error:
        raise Unusable(error.strerror) from error
    except (ValueError, RecursionError) as error:
        raise Unusable(f"not JSON: {error}") from error
    if not isinstance(report, dict) or report.get("schema") != "drift.compare/1":
        raise Unusable("the schema is not drift.compare/1, which this tool reads")
    if report.get("partial") is not False:
        raise Unusable("the run was interrupted; a picture needs a whole one")
    return stream_of(report, window)


def stream_of(report, window):
    modes, domains, tokens = [], None, []
    for number, row in enumerate(field("report", report, "modes", list)):
        where = f"modes[{number}]"
        if field(where, row, "mode", str) == "off":
            continue
        label, curve = field(where, row, "label", str), field(where, row, "curve", list)
        if not curve:
            raise Unusable(f"{where}: the curve is empty; make the report with drift compare --stream")
        if len(curve) > POINTS_MAX:
            raise Unusable(f"{where}: the curve has {len(curve)} points; this tool draws up to {POINTS_MAX}")
        read_domains, read_tokens, mode = read_curve(where, curve, Mode(label, row["mode"], [], [], []))
        if domains is not None and read_domains != domains:
            raise Unusable(f"{where}: the curve is over other prompts than that of the first mode")
        domains = read_domains
        tokens.append(read_tokens)
        modes.append(mode)
    if not modes:
        raise Unusable("there is no mode that drafts, so no acceptance to draw")
    if len(modes) > MODES_MAX:
        raise Unusable(f"{len(modes)} modes draft; this tool draws up to {MODES_MAX}")
    if len({mode.label for mode in modes}) < len(modes):
        raise Unusable("two modes have the same label")
    segments = []
    for i, domain in enumerate(domains):
        if not segments or segments[-1].domain != domain:
            segments.append(Segment(domain, range(i, i)))
        segments[-1].points = range(segments[-1].points.start, i + 1)
    ends, total = [], 0.0
    for column in zip(*tokens):
        total += sum(column) / len(column)
        ends.append(total)
    if not total:
        raise Unusable("no tokens were generated")
    for mode, counts in zip(modes, tokens):
        mode.moving = [value for segment in segments for value in moving(mode, counts, segment.points, window)]
    ids = [str(prompt.get("id", "")) if isinstance(prompt, dict) else "" for prompt in field("report", report, "prompts", list)]
    ids += [""] * (len(domains) - len(ids))
    return Stream(report, modes, segments, ids, ends)


def read_curve(where, curve, mode):
    domains, tokens = [], []
    for i, point in enumerate(curve):
        at = f"{where}.curve[{i}]"
        domains.append(field(at, point, "domain", str))
        counts = [field(at, point, name, int) for name in ("tokens", "drafted", "accepted")]
        if min(counts) < 0 or max(counts) > 1 << 40 or counts[2] > counts[1]:
            raise Unusable(f"{at}: tokens, drafted and accepted are {counts}; they must not be negative, nor accepted above drafted")
        tokens.append(counts[0])
        mode.drafted.append(counts[1])
        mode.accepted.append(counts[2])
    if not any(mode.drafted):
        raise Unusable(f"{where}: nothing was drafted")
    return domains, tokens, mode


def moving(mode, tokens, points, window):
    """Acceptance over the fewest last prompts of the segment that hold `window` tokens (all of them while there are fewer)."""
    first, held, drafted, accepted = points.start, 0, 0, 0
    for i in points:
        held, drafted, accepted = held + tokens[i], drafted + mode.drafted[i], accepted + mode.accepted[i]
        while held - tokens[first] >= window:
            held, drafted, accepted = held - tokens[first], drafted - mode.drafted[first], accepted - mode.accepted[first]
            first += 1
        yield accepted / drafted if drafted else None


# --------------------------------------------------------------------------------------------------------------- words

def percent(value):
    return "-" if value is None else f"{100 * value:.0f} %" if value >= 0.0995 or value == 0 else f"{100 * value:.1f} %"


def listed(names):
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def shown(domain):
    name = domain or "(no domain)"
    return name if len(name) <= 18 else name[:17] + "…"


def at_home_and_away(stream):
    """Indices of the prompts in the first segment's domain, and of the others."""
    home = stream.segments[0].domain
    split = ([], [])
    for segment in stream.segments:
        split[segment.domain != home].extend(segment.points)
    return split


def title_of(stream):
    home, away = at_home_and_away(stream)
    names = list(dict.fromkeys(shown(s.domain) for s in stream.segments if s.domain != stream.segments[0].domain))
    where = [" on " + shown(stream.segments[0].domain), " on " + (listed(names) if 1 <= len(names) <= 4 else "other text")]
    parts = []
    for mode in stream.modes[:3]:
        rates = [mode.acceptance(home)] + ([mode.acceptance(away)] if away else [])
        parts.append(f"{mode.label} " + " and ".join(percent(rate) + place for rate, place in zip(rates, where)))
        where = ["", ""]  # said once
    return "Drafted tokens that the target accepts: " + "; ".join(parts)


def subtitle_of(stream, window):
    report, lines = stream.report, []
    base = next((mode for mode in stream.modes if mode.kind == "static"), None)
    away = at_home_and_away(stream)[1]
    differences = []
    for mode in stream.modes:
        if base is None or mode is base:
            continue
        points = away or range(len(stream.ends))
        found = compare_report.paired_difference([(mode.accepted[i], mode.drafted[i], base.accepted[i], base.drafted[i]) for i in points])
        if found:
            differences.append("{} {:+.1f} points ({:+.1f} to {:+.1f})".format(mode.label, *found))
    if differences:
        place = "away from " + shown(stream.segments[0].domain) if away else "over the stream"
        lines.append(f"Against {base.label}, {place} (95 % interval over prompts): " + "; ".join(differences[:3]))
    names = [report[side].get("name") for side in ("target", "draft") if isinstance(report.get(side), dict)]
    told = [" drafted for by ".join(str(name)[:40] for name in names)] if names and all(names) else []
    sampler = report.get("sampler")
    if isinstance(sampler, dict) and isinstance(sampler.get("temperature"), (int, float)):
        told.append(f"temperature {sampler['temperature']:g}")
    told += [f"{len(stream.ends)} prompts", f"{stream.ends[-1]:,.0f} tokens a mode"]
    lines.append(", ".join(told))
    return lines + [f"Lines: over the last {window:,} tokens, anew at each shift. Dots: single prompts."]


# ------------------------------------------------------------------------------------------------------------- drawing

def chart_of(alt, stream, window):
    labels = [mode.label for mode in stream.modes]
    rows, segments, start = [], [], 0.0
    for number, segment in enumerate(stream.segments):
        end = stream.ends[segment.points[-1]]
        rates = [f"{mode.label} {percent(mode.acceptance(segment.points))}" for mode in stream.modes]
        wide = (end - start) / stream.ends[-1] * (WIDTH - 120)  # points across, about
        segments.append({"start": start, "end": end, "middle": (start + end) / 2, "shift": number > 0, "shaded": number % 2 == 1,
                         "name": shown(segment.domain) if wide > 8 * len(shown(segment.domain)) else "",
                         "rates": rates if wide > 8 * max(len(rate) for rate in rates) else [""]})
        for (colour, _), mode in zip(STYLES, stream.modes):
            for i in segment.points:
                rows.append({"mode": mode.label, "colour": colour, "segment": number, "domain": shown(segment.domain), "prompt": stream.ids[i], "tokens": stream.ends[i],
                             "acceptance": mode.moving[i], "of one prompt": mode.accepted[i] / mode.drafted[i] if mode.drafted[i] else None,
                             "accepted": mode.accepted[i], "drafted": mode.drafted[i]})
        start = end
    values = [row["acceptance"] for row in rows if row["acceptance"] is not None]
    singles = sorted(row["of one prompt"] for row in rows if row["of one prompt"] is not None)
    # Room above for the names and rates of the segments: three tenths of the plot.
    top = min(max(max(values), singles[int(0.95 * (len(singles) - 1))], 0.01) / 0.74, 1.42)
    x = alt.X("tokens:Q", title="tokens generated", axis=alt.Axis(format=",d", grid=False, tickCount=8), scale=alt.Scale(domain=[0, stream.ends[-1]], nice=False))
    y_axis = alt.Axis(format="%", title="accepted / drafted", grid=True, gridColor="#e4e4e4", values=ticks(min(top * 0.78, 1.0)))
    y_scale = alt.Scale(domain=[0, top], nice=False)
    legend = alt.Legend(title=None, orient="bottom", symbolType="stroke", symbolStrokeWidth=3, symbolSize=900, labelLimit=300)
    colour = alt.Color("mode:N", scale=alt.Scale(domain=labels, range=[STYLES[i][0] for i in range(len(labels))]), legend=legend)
    dash = alt.StrokeDash("mode:N", scale=alt.Scale(domain=labels, range=[STYLES[i][1] for i in range(len(labels))]), legend=legend)
    data, marks = alt.Data(values=rows), alt.Data(values=segments)
    tooltip = [alt.Tooltip(f"{name}:{kind}", format=form) for name, kind, form in
               (("mode", "N", ""), ("domain", "N", ""), ("prompt", "N", ""), ("tokens", "Q", ",d"), ("acceptance", "Q", ".1%"),
                ("of one prompt", "Q", ".1%"), ("accepted", "Q", ",d"), ("drafted", "Q", ",d"))]
    bands = alt.Chart(marks).transform_filter("datum.shaded").mark_rect(color="#f4f4f4").encode(x=alt.X("start:Q", title="tokens generated"), x2="end:Q")
    shifts = alt.Chart(marks).transform_filter("datum.shift").mark_rule(color=FAINT, strokeDash=[3, 3]).encode(x=alt.X("start:Q", title="tokens generated"))
    names = alt.Chart(marks).mark_text(fontSize=17, fontWeight="bold", color=INK, baseline="top").encode(
        x=alt.X("middle:Q", title="tokens generated"), y=alt.value(8), text="name:N")
    rates = alt.Chart(marks).mark_text(fontSize=14, color=INK, baseline="top", lineHeight=18).encode(
        x=alt.X("middle:Q", title="tokens generated"), y=alt.value(32), text="rates:N")
    dots = alt.Chart(data).mark_point(size=26, opacity=0.35, strokeWidth=0, clip=True).encode(
        x=x, y=alt.Y("of one prompt:Q", axis=y_axis, scale=y_scale), fill=alt.Fill("colour:N", scale=None), tooltip=tooltip)
    lines = alt.Chart(data).mark_line(strokeWidth=3).encode(x=x, y=alt.Y("acceptance:Q", axis=y_axis, scale=y_scale), color=colour, strokeDash=dash,
                                                            detail="segment:N", tooltip=tooltip)
    title = alt.TitleParams(wrapped(title_of(stream), 104, "; "), subtitle=[line for text in subtitle_of(stream, window) for line in wrapped(text, 165, " ")],
                            anchor="start", fontSize=20, subtitleFontSize=14, subtitleColor="#444444", color=INK, offset=14, lineHeight=25, subtitleLineHeight=19, subtitlePadding=8)
    return alt.layer(bands, dots, shifts, lines, names, rates).properties(
        width=WIDTH, height=HEIGHT, title=title, autosize=alt.AutoSizeParams(type="fit", contains="padding"), padding=14, background="white",
        description=title_of(stream)).configure(
            font="sans-serif", view=alt.ViewConfig(stroke=None), legend=alt.LegendConfig(labelFontSize=15, labelColor=INK, offset=6),
            axis=alt.AxisConfig(labelFontSize=14, titleFontSize=14, titleFontWeight="normal", labelColor=INK, titleColor=INK))


def ticks(top):
    """About five round steps up to `top`."""
    step = next(s for s in (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5) if top / s <= 6)
    return [round(i * step, 4) for i in range(int(top / step + 1e-9) + 1)]


def wrapped(text, width, separator):
    """Lines of whole pieces, of at most `width` characters where the pieces allow it."""
    lines = []
    for piece in text.split(separator):
        if lines and len(lines[-1]) + len(separator) + len(piece) <= width:
            lines[-1] += separator + piece
        else:
            lines.append(piece)
    return [line + separator.rstrip() for line in lines[:-1]] + lines[-1:]


def page_of(stream, spec, bundle):
    """One file: the scripts, the drawing's text, and the segments' figures as a table. '<' never stands in the JSON, so no name in a
    report can end the script."""
    head = "".join(f"<th>{html.escape(mode.label)}</th>" for mode in stream.modes)
    rows = "".join("<tr><td>" + html.escape(shown(segment.domain)) + f"</td><td>{len(segment.points)}</td>" +
                   "".join(f"<td>{percent(mode.acceptance(segment.points))}</td>" for mode in stream.modes) + "</tr>\n" for segment in stream.segments)
    title, version = html.escape(title_of(stream)), html.escape(str(stream.report.get("drift_version", "")))
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>body {{ font: 15px sans-serif; color: {INK}; margin: 12px; }} #picture svg {{ max-width: 100%; height: auto; }}
table {{ border-collapse: collapse; margin: 8px 14px; }} td, th {{ padding: 3px 14px 3px 0; text-align: left; }}</style></head>
<body><div id="picture" role="img" aria-label="{title}"></div>
<table><tr><th>segment</th><th>prompts</th>{head}</tr>
{rows}</table><p style="margin: 8px 14px">accepted / drafted; drift {version}</p>
<script>{bundle}</script>
<script>vegaEmbed("#picture", {json.dumps(spec).replace("<", chr(92) + "u003c")}, {{renderer: "svg", actions: false}});</script>
</body></html>
"""


def write(path, content):
    part = f"{path}.part-{os.getpid()}"
    try:
        with open(part, "wb") as file:
            file.write(content)
        os.replace(part, path)
    finally:
        if os.path.exists(part):
            os.remove(part)


def packages():
    """The drawing packages that ./dev setup has put beside llama.cpp, else the system's."""
    sys.path.insert(0, os.path.join(os.environ.get("DRIFT_DEPS") or os.path.join(ROOT, ".deps"), "python"))
    import altair
    import vl_convert
    return altair, vl_convert


def whole_window(text):
    value = int(text)
    if not 1 <= value <= 1_000_000:
        raise ValueError
    return value


def main():
    parser = argparse.ArgumentParser(usage="tools/picture.py REPORT.json STEM [--window TOKENS]", description=__doc__.split("\n\n")[0])
    parser.add_argument("report")
    parser.add_argument("stem")
    parser.add_argument("--window", type=whole_window, default=512, metavar="TOKENS", help="1 to 1,000,000 [512]")
    options = parser.parse_args()
    try:
        stream = read(options.report, options.window)
    except Unusable as error:
        print(f"picture: {options.report}: {error}", file=sys.stderr)
        return 2
    try:
        alt, vl_convert = packages()
    except ImportError as error:
        print(f"picture: {error}; ./dev setup installs the packages of tools/picture-requirements.txt", file=sys.stderr)
        return 3
    spec = chart_of(alt, stream, options.window).to_dict()
    try:
        write(options.stem + ".html", page_of(stream, spec, vl_convert.javascript_bundle()).encode())
        write(options.stem + ".png", vl_convert.vegalite_to_png(json.dumps(spec), scale=2, allowed_base_urls=[]))
    except OSError as error:
        print(f"picture: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    print(f"{options.stem}.png\n{options.stem}.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
