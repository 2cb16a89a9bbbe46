"""The lab's report: one offline page with pictures and tables, the same tables as Markdown and as numbers."""
import html
import json
import os
import shlex

import compare_report
import picture
import plan
import tables
from runs import say

SHOWN_IN_CURVES = ("static", "seed", "drift", "chain", "draft+suffix", "drift+suffix")
CURVE_WIDTH, CURVE_HEIGHT, CURVES_A_ROW = 360, 200, 3


# ----------------------------------------------------------------------------------------------------------- pictures

def narrowed(report, labels):
    """The report with only these of its modes that draft."""
    return {**report, "modes": [m for m in report["modes"] if m["label"] in labels]}


def window_of(size):
    each, tokens = plan.SIZES[size]
    return min(512, max(48, each * tokens // 4))  # a quarter of a segment


def opening_picture(alt, measured, size):
    found = next((m for m in measured if m.scenario.opening), None)
    if found is None:
        return None
    window = window_of(size)
    return picture.chart_of(alt, picture.stream_of(narrowed(found.report, found.scenario.opening), window), window)


def colours(alt, labels, title=None):
    """The same colour for a method in every picture but the first."""
    known = {label: picture.STYLES[i % len(picture.STYLES)][0] for i, label in enumerate(SHOWN_IN_CURVES)}
    return alt.Color("method:N", scale=alt.Scale(domain=list(labels), range=[known.get(label, "#777777") for label in labels]),
                     legend=alt.Legend(title=title, orient="top", labelFontSize=14, labelLimit=300))


def effects_picture(alt, main):
    """Against the static draft, with intervals: all scenarios, the methods of the curves."""
    rows = []
    for record in main.records:
        found = record.get("tokens_per_pass_against_static")
        if record["method"] in SHOWN_IN_CURVES and found and found[1] is not None:
            rows.append({"scenario": record["scenario"], "method": record["method"], "difference": found[0], "low": found[1], "high": found[2]})
    if not rows:
        return None
    labels = [label for label in SHOWN_IN_CURVES if any(r["method"] == label for r in rows)]
    scenarios = list(dict.fromkeys(r["scenario"] for r in rows))
    y = alt.Y("scenario:N", sort=scenarios, title=None, axis=alt.Axis(labelFontSize=14, labelLimit=260))
    offset = alt.YOffset("method:N", sort=labels)
    base = alt.Chart(alt.Data(values=rows))
    zero = alt.Chart(alt.Data(values=[{"zero": 0}])).mark_rule(color=picture.FAINT).encode(x="zero:Q")
    bars = base.mark_rule(strokeWidth=2.5).encode(y=y, yOffset=offset, x=alt.X("low:Q", title="tokens per pass of the target, against the static draft (95 %)"), x2="high:Q", color=colours(alt, labels))
    dots = base.mark_point(filled=True, size=60, opacity=1).encode(y=y, yOffset=offset, x="difference:Q", color=colours(alt, labels),
                                                                   tooltip=["scenario:N", "method:N", *(alt.Tooltip(f"{name}:Q", format="+.3f") for name in ("difference", "low", "high"))])
    return alt.layer(zero, bars, dots).properties(width=900, height=alt.Step(14))


def curves_picture(alt, measured, size):
    """Acceptance over the tokens of each run, a small picture each."""
    charts, window = [], window_of(size)
    shown = [label for label in SHOWN_IN_CURVES if any(label in m.labels for m in measured)]
    for m in measured:
        if m.scenario.role == "grid" or m.scenario.order != "blocks" or len(m.prompts) < 2:
            continue
        stream = picture.stream_of(narrowed(m.report, SHOWN_IN_CURVES), window)
        rows, shifts = [], []
        for number, segment in enumerate(stream.segments):
            if number:
                shifts.append({"tokens": stream.ends[segment.points[0] - 1]})
            for mode in stream.modes:
                rows += [{"method": mode.label, "segment": number, "tokens": stream.ends[i], "acceptance": mode.moving[i]} for i in segment.points]
        lines = alt.Chart(alt.Data(values=rows)).mark_line(strokeWidth=2).encode(
            x=alt.X("tokens:Q", title=None, axis=alt.Axis(format=",d", grid=False, tickCount=4)), y=alt.Y("acceptance:Q", title=None, axis=alt.Axis(format="%", tickCount=4)),
            color=colours(alt, shown), detail="segment:N", tooltip=["method:N", "tokens:Q", alt.Tooltip("acceptance:Q", format=".1%")])
        marks = alt.Chart(alt.Data(values=shifts)).mark_rule(color=picture.FAINT, strokeDash=[3, 3]).encode(x="tokens:Q")
        charts.append(alt.layer(marks, lines).properties(width=CURVE_WIDTH, height=CURVE_HEIGHT, title=m.scenario.title))
    return alt.concat(*charts, columns=CURVES_A_ROW) if charts else None


def pictures(measured, main, size):
    """([(title, text, specification)], script, png of the first) or ([], "", None), aloud, where there is nothing to draw with."""
    try:
        alt, vl_convert = picture.packages()
    except ImportError as error:
        say(f"SKIPPED the pictures: {error}; ./dev setup installs the packages of tools/picture-requirements.txt")
        return [], "", None
    out, png = [], None
    for title, text, draw in (
            ("", "", lambda: opening_picture(alt, measured, size)),
            ("Against the static draft", "Lines are 95 % intervals, paired by request; right of zero a method gives more tokens a pass of the target than the static draft does.",
             lambda: effects_picture(alt, main)),
            ("Adaptation curves", f"Accepted / drafted over the last {window_of(size)} tokens, anew at each shift, against the tokens generated. Methods that copy draft more and longer blocks, so "
             "compare a curve with itself.", lambda: curves_picture(alt, measured, size))):
        try:
            chart = draw()
        except picture.Unusable as error:
            say(f"SKIPPED a picture: {error}")
            continue
        if chart is None:
            continue
        out.append((title, text, chart.to_dict()))
        if png is None and not title:
            png = vl_convert.vegalite_to_png(json.dumps(out[-1][2]), scale=2, allowed_base_urls=[])
    return out, vl_convert.javascript_bundle(), png


# -------------------------------------------------------------------------------------------------------------- texts

STYLE = f"""body {{ font: 15px sans-serif; color: {picture.INK}; margin: 16px; }} .picture svg {{ max-width: 100%; height: auto; }}
h1 {{ font-size: 24px; }} h2 {{ font-size: 19px; margin-top: 34px; }} p {{ max-width: 1100px; }} .wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: 13px; }} th {{ text-align: left; border-bottom: 1px solid #999; vertical-align: bottom; }}
td, th {{ padding: 2px 12px 2px 0; white-space: nowrap; }} th {{ white-space: normal; }} tr.first td {{ border-top: 1px solid #ddd; }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere; font-size: 12px; color: #444; }} summary {{ color: #555; cursor: pointer; }}"""


def facts(lab, measured, skipped, public):
    each, tokens = plan.SIZES[lab.size]
    machine = measured[0].report["machine"]
    names = " drafted for by ".join(measured[0].report[side]["name"] for side in ("target", "draft"))
    return [f"{names}; {lab.version}; size {lab.size}: {each} requests a segment, {tokens} tokens each; rows: {lab.split}; "
            + ("prompts: built from texts on this machine (lab/public_prompts.py; sources and hashes in public-prompts/manifest.json)" if public else "prompts: a folder that was given"),
            f"{machine['cpu']}, {machine['threads']} thread{'s' * (machine['threads'] != 1)}, ggml {machine['ggml_flags']}, DRIFT kernels {machine['highway_target']}",
            *(f"Left out: {line}" for line in skipped)]


def commands_of(table, jobs, call):
    wanted = [job for job in jobs if job.run.name in table.runs]
    return "\n".join([f"$ {call}", *(f"# {job.run.name}\n$ {job.shown_command()}" for job in wanted)])


def table_html(table, jobs, call):
    def row(cells):
        return f"<tr{' class=first' if cells[0] else ''}>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>\n"
    body = "".join(row(cells) for cells in table.rows) if table.rows else f"<tr><td colspan={len(table.head)}>none</td></tr>\n"
    head = "".join(f"<th>{html.escape(name)}</th>" for name in table.head)
    reading = f"<p>{html.escape(table.reading)}</p>\n" if table.reading else ""
    return (f"<h2 id=\"{table.name}\">{html.escape(table.title)}</h2>\n{reading}<div class=wide><table><tr>{head}</tr>\n{body}</table></div>\n"
            f"<details><summary>the commands that made it</summary><pre>{html.escape(commands_of(table, jobs, call))}</pre></details>\n")


def page_html(title, lines, drawn, script, made, jobs, call):
    """'<' never stands in the JSON, so no name in a report can end the script."""
    parts, shows = [], []
    for number, (heading, text, spec) in enumerate(drawn):
        if heading:
            parts.append(f"<h2>{html.escape(heading)}</h2>\n<p>{html.escape(text)}</p>\n")
        parts.append(f"<div class=picture id=\"picture{number}\" role=img aria-label=\"{html.escape(heading or title)}\"></div>\n")
        shows.append(f"vegaEmbed(\"#picture{number}\", {json.dumps(spec).replace('<', chr(92) + 'u003c')}, {{renderer: \"svg\", actions: false}});")
        if number == 0:
            parts.append("".join(f"<p>{html.escape(line)}</p>\n" for line in lines))
    if not drawn:
        parts = [f"<p>{html.escape(line)}</p>\n" for line in lines]
    tables_html = "".join(table_html(table, jobs, call) for table in made)
    scripts = f"<script>{script}</script>\n<script>{chr(10).join(shows)}</script>\n" if drawn else ""
    return (f"<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{html.escape(title)}</title>\n<style>{STYLE}</style></head>\n<body><h1>{html.escape(title)}</h1>\n"
            f"{''.join(parts)}{tables_html}{scripts}</body></html>\n")


def markdown(title, lines, made, jobs, call):
    out = [f"# {title}", ""] + [line + "\n" for line in lines]
    for table in made:
        out += [f"## {table.title}", "", *([table.reading, ""] if table.reading else []), "| " + " | ".join(table.head) + " |", "|" + "---|" * len(table.head)]
        out += ["| " + " | ".join(cells) + " |" for cells in table.rows] + ["", "Runs: " + (", ".join(table.runs) or "none"), ""]
    out += ["## Commands", ""] + [f"    {line}" for line in commands_of(made[-1], jobs, call).splitlines()]
    return "\n".join(out) + "\n"


def write_all(lab, jobs, skipped, words, public):
    """All files of the report. Returns their paths."""
    if not jobs:
        raise plan.Unusable("no run is done, so there is nothing to report")
    try:
        measured, made = tables.all_tables(jobs)
    except compare_report.Unreadable as error:
        raise plan.Unusable(str(error)) from error
    call, title = shlex.join(words), "The lab of DRIFT: " + {"smoke": "a smoke test, its figures mean nothing", "quick": "quick", "full": "full size"}[lab.size]
    lines = facts(lab, measured, skipped, public)
    drawn, script, png = pictures(measured, made[0], lab.size)
    numbers = {"schema": "drift.lab/1", "size": lab.size, "split": lab.split, "public_prompts": public, "drift_version": lab.version, "machine": measured[0].report["machine"],
               "left_out": skipped, "tables": [{"name": t.name, "title": t.title, "runs": t.runs, "records": t.records} for t in made]}
    files = {"lab.json": (json.dumps(numbers, indent=1, ensure_ascii=False) + "\n").encode(), "lab.md": markdown(title, lines, made, jobs, call).encode(),
             "lab.html": page_html(title, lines, drawn, script, made, jobs, call).encode()}
    if png:
        files["opening.png"] = png
    paths = []
    for name, content in files.items():
        paths.append(os.path.join(lab.out, name))
        picture.write(paths[-1], content)
    say("the report: " + ", ".join(paths))
    return paths


# ------------------------------------------------------------------------------------------------------------ studies

def studies_pictures(drawn):
    """As pictures(), of the studies that draw; [(name, title, text, specification, png)]."""
    try:
        alt, vl_convert = picture.packages()
    except ImportError as error:
        say(f"SKIPPED the pictures: {error}; ./dev setup installs the packages of tools/picture-requirements.txt")
        return [], ""
    out = []
    for study, made in drawn:
        if hasattr(study, "pictures"):
            for name, title, text, chart in study.pictures(alt, {table.name: table for table in made}):
                spec = chart.to_dict()
                out.append((name, title, text, spec, vl_convert.vegalite_to_png(json.dumps(spec), scale=2, allowed_base_urls=[])))
    return out, vl_convert.javascript_bundle() if out else ""


def write_studies(options, corpus, requests, made, drawn, skipped, jobs, words):
    """The studies' report: studies.html, .md, .json and a PNG per picture."""
    if not made:
        raise plan.Unusable("no study was made, so there is nothing to report" + "".join(f"; {line}" for line in skipped))
    call, title = shlex.join(words), "Studies by replay: " + corpus.pair
    manifest = corpus.manifest
    lines = [f"{manifest['target']['name']} drafted for by {manifest['draft']['name']}; {corpus.version}; {len(manifest['traces'])} traces ({'; '.join(dict.fromkeys(t['flags'] for t in manifest['traces'].values()))}); "
             f"at most {requests} requests of each domain", *(f"Left out: {line}" for line in skipped)]
    shown, script = studies_pictures(drawn)
    numbers = {"schema": "drift.lab.studies/1", "pair": corpus.pair, "drift_version": corpus.version, "requests": requests, "grid": options.grid, "corpus": manifest, "left_out": skipped,
               "tables": [{"name": t.name, "title": t.title, "studies": t.runs, "records": t.records} for t in made]}
    html_text = page_html(title, lines, [(t, text, spec) for _, t, text, spec, _ in shown], script, made, jobs, call)
    files = {"studies.json": (json.dumps(numbers, indent=1, ensure_ascii=False, default=float) + "\n").encode(), "studies.md": markdown_studies(title, lines, made, jobs, call).encode(),
             "studies.html": html_text.encode(), **{f"{name}.png": png for name, _, _, _, png in shown}}
    for name, content in files.items():
        picture.write(os.path.join(options.out, name), content)
    say("the report: " + ", ".join(os.path.join(options.out, name) for name in files))


def markdown_studies(title, lines, made, jobs, call):
    out = [f"# {title}", ""] + [line + "\n" for line in lines]
    for table in made:
        out += [f"## {table.title}", "", *([table.reading, ""] if table.reading else []), "| " + " | ".join(table.head) + " |", "|" + "---|" * len(table.head)]
        out += ["| " + " | ".join(cells) + " |" for cells in table.rows] + [""]
    out += ["## Commands", "", f"    $ {call}"]
    for job in jobs:
        out += [f"    # {job.name}", *(f"    $ {line}" for line in job.commands)]
    return "\n".join(out) + "\n"
