// SPDX-License-Identifier: MIT
// steps.js: the suite's C code in a page, and what all step pages share. A classic script, because
// browsers load no modules from files.
//
// - loadSteps: the WebAssembly program. Its log becomes plain objects.
// - stepPage: choices, question, slider and keys around one drawing; the state is in the URL.
// - heat, table, boxes, bars, code: the pictures. None of them knows attention.
"use strict";
const BUFFERS = ["Q", "K", "V", "dO", "O", "lse", "dQ", "dK", "dV", "work", "visits", "log"];
const HEAD = 16, FREE = 1 << 30;

async function loadSteps(bytes) {
    const nothing = (a, b) => {
        const words = new Uint32Array(c.memory.buffer);
        words[a >> 2] = words[b >> 2] = 0;
        return 0;
    };
    const wasi = { environ_sizes_get: nothing, environ_get: () => 0, clock_time_get: () => 0,
                   proc_exit: () => { throw Error("the C code ended"); } };
    const some = new Proxy({}, { get: (_, name) => wasi[name] || (() => 8) }); // 8: no such file
    const program = await WebAssembly.instantiate(bytes, { wasi_snapshot_preview1: some });
    const c = program.instance.exports;
    c._initialize();
    const buffer = (name, n, Type = Float32Array) =>
        new Type(c.memory.buffer, c.step_buffer(BUFFERS.indexOf(name)), n);
    const texts = new Map();
    function text(at) {
        if (!texts.has(at)) {
            const all = new Uint8Array(c.memory.buffer, at, 400);
            texts.set(at, at ? new TextDecoder().decode(all.slice(0, all.indexOf(0))) : "");
        }
        return texts.get(at);
    }

    function log(count) {
        if (count < 0) throw Error("the C code refuses this case");
        const all = buffer("log", count), events = [];
        for (let at = 0; at < count; at += all[at]) {
            const [, op, name, file, func, line, rows, cols, buffer, offset, i, ni, j, nj, loads,
                   stores] = all.slice(at, at + HEAD);
            events.push({ op: String.fromCharCode(op), words: text(name), file: text(file),
                          name: text(name).replace(/^.*(->|\.)/, ""), func: text(func), line, rows,
                          cols, buffer: BUFFERS[buffer], offset, tile: [i, ni, j, nj], loads,
                          stores, values: Array.from(all.slice(at + HEAD, at + all[at])) });
        }
        return events;
    }
    return {
        // given: {Q, K, V} rows in the place of random numbers
        input({ N, d, from = -FREE, to = FREE, seed = 0, sram = 0, Br = 64, Bc = 64, given }) {
            if (c.step_case(N, d, from, to, seed, sram, Br, Bc) < 0) throw Error("too large");
            for (const t in given || {}) buffer(t, N * d).set(given[t].flat());
        }, visits: list => buffer("visits", list.length, BigInt64Array).set(list.map(BigInt)),
        run: (rung, backward = 0) => log(c.step_run(rung, backward)),
        rows: (tree, i) => log(c.step_rows(tree, i)),
        ring: (...choices) => log(c.step_ring(...choices)),
        read: (name, n) => Array.from(buffer(name, n)), };
}

// --- small things --------------------------------------------------------------------------------

const unique = list => [...new Set(list)];
const range = n => Array.from({ length: n }, (_, k) => k);
const shown = x => x === undefined || x === null ? "" : typeof x !== "number" ? `${x}` :
    x === Infinity ? "inf" : x === -Infinity ? "-inf" : x.toFixed(4);

function tag(name, attributes = {}, ...children) {
    const e = document.createElement(name);
    for (const [k, v] of Object.entries(attributes))
        typeof v === "function" ? e[k] = v : v === false || v === undefined ? 0 :
            e.setAttribute(k, v === true ? "" : v);
    e.append(...children.filter(c => c !== null && c !== undefined));
    return e;
}

// A tap writes what a part of a picture is below it.
function svg(width, height, inside, label) {
    const e = tag("div", { class: "picture", role: "img", "aria-label": label }), note = tag("p");
    e.innerHTML = `<svg viewBox="0 0 ${width} ${height}" style="max-width:${width}px">` +
        `${inside}</svg>`;
    e.onclick = ({ target }) => note.textContent = (target.querySelector("title") ||
        target.parentNode.querySelector(":scope > title") || {}).textContent;
    e.append(note);
    return e;
}

// rows: [[label, [cells]]]; fresh(r, k): marked. data-name: what a test reads
function table(name, head, rows, fresh = () => false) {
    return tag("div", { class: "wide" }, tag("table", { "data-name": name },
        tag("caption", {}, name),
        tag("thead", {}, tag("tr", {}, tag("th"), ...head.map(h => tag("th", { scope: "col" },
            h)))), tag("tbody", {}, ...rows.map(([label, cells], r) => tag("tr", {},
            tag("th", { scope: "row" }, label), ...cells.map((x, k) =>
                tag("td", { class: fresh(r, k) ? "new" : "" }, shown(x))))))));
}

const matrix = (values, cols) => range(values.length / cols || 0)
    .map(r => values.slice(r * cols, (r + 1) * cols));

// --- pictures ------------------------------------------------------------------------------------

// A square of scores. value(i, j): the score or undefined; colour(i, j): 0 to 1 or undefined.
// tile: [i, ni, j, nj], framed. lit: {rows, cols}: [first, count] of the strips.
function heat({ rows, cols, value, colour, tile, lit = {}, row, label, names = ["query", "key"],
                tell = (v, p) => `s = ${shown(v)}${p < 2 ? `, P = ${shown(p)}` : ""}` }) {
    const most = Math.max(rows, cols), s = Math.max(9, Math.min(34, Math.floor(330 / most)));
    const m = s + 12, inside = (n, span) => span && n >= span[0] && n < span[0] + span[1];
    const out = [], box = (x, y, w, h, kind, title, style = "") => out.push(`<rect x="${x}" ` +
        `y="${y}" width="${w}" height="${h}" class="${kind}" style="${style}"><title>${title}` +
        `</title></rect>`);
    for (let i = 0; i < rows; i++)
        box(2, m + i * s, s, s - 1, `strip q ${inside(i, lit.rows) ? "lit" : ""} ` +
            `${i === row ? "row" : ""}`, `${names[0]} ${i}`);
    for (let j = 0; j < cols; j++)
        box(m + j * s, 2, s - 1, s, `strip k ${inside(j, lit.cols) ? "lit" : ""}`,
            `${names[1]} ${j}`);
    for (let i = 0; i < rows; i++)
        for (let j = 0; j < cols; j++) {
            const v = value(i, j), p = colour(i, j);
            box(m + j * s, m + i * s, s - 1, s - 1,
                `cell ${v === undefined ? "open" : v === -Infinity ? "hidden" : ""}`,
                `${names[0]} ${i}, ${names[1]} ${j}: ${v === undefined ? "not yet" : tell(v, p)}`,
                p === undefined ? "" : `--p:${(12 + 88 * Math.min(1, p)).toFixed(0)}%`);
        }
    if (tile && tile[1])
        out.push(`<rect x="${m + tile[2] * s - 1}" y="${m + tile[0] * s - 1}" class="frame" ` +
            `width="${tile[3] * s + 1}" height="${tile[1] * s + 1}"/>`);
    out.push(`<text x="2" y="${m - 3}">Q</text><text x="${m - 10}" y="${s - 1}">K</text>`);
    return svg(m + cols * s + 3, m + rows * s + 3, out.join(""), label);
}

// Fast memory: a box for each tile, as long as it has elements; the mark stands at M.
function boxes(name, list, most) {
    const all = list.reduce((sum, [, n]) => sum + n, 0), full = Math.max(all, most) || 1;
    return tag("div", { class: "memory" }, tag("h3", {}, `${name}: ${all} elements`),
        tag("div", { class: "boxes" }, ...list.filter(([, n]) => n).map(([t, n, fresh]) =>
            tag("span", { class: fresh ? "fresh" : "", style: `flex:${n} 0 0`,
                          title: `${t}: ${n} elements` }, t)),
            tag("i", { style: `flex:${Math.max(0, full - all)} 0 0` }),
            most ? tag("b", { style: `left:${100 * most / full}%`, title: `M = ${most}` }) : null));
}

// Growing bars; the outline is where another one ends. rows: [label, now, its end, other's end]
function bars(name, rows) {
    const most = Math.max(1, ...rows.flatMap(([, now, end, other]) => [now, end || 0, other || 0]));
    return tag("div", { class: "bars", "data-name": name }, ...rows.map(([label, now, , other]) =>
        tag("div", {}, tag("span", {}, label), tag("span", { class: "track" },
            tag("i", { style: `width:${100 * now / most}%` }),
            other ? tag("em", { style: `width:${100 * other / most}%` }) : null),
            tag("b", { "data-cell": label }, `${now}`))));
}

// The line of C that runs, and its neighbours.
function code(at) {
    const lines = (globalThis.steps_sources || {})[at && at.file];
    if (!lines) return null;
    const first = Math.max(0, Math.min(lines.length - 9, at.line - 5));
    return tag("details", { class: "code", open: innerWidth > 700 },
        tag("summary", {}, tag("a", { href: `../../source/${at.file}.html` },
            at.file), ` ${at.func}`),
        tag("pre", {}, ...lines.slice(first, first + 9).map((text, k) =>
            tag("span", { class: first + k + 1 === at.line ? "now" : "" },
                `${first + k + 1} `.padStart(5) + text + "\n"))));
}

// --- a page --------------------------------------------------------------------------------------

// make(values): [{say, at, question: {text, answer}}]; draw(step, values, steps, now): nodes
function stepPage(at, choices, make, draw) {
    let steps = [], now = 0, answered = -1;
    const value = {}, controls = tag("form", { class: "choices" });
    const out = tag("div", { class: "shown" });
    const say = tag("p", { class: "say", "aria-live": "polite" });
    const slider = tag("input", { type: "range", min: "0", step: "1", "aria-label": "step" });
    const where = tag("output"), ask = tag("form", { class: "ask", hidden: true });
    const given = { ...Object.fromEntries(new URLSearchParams(at.dataset.set || "")),
                    ...Object.fromEntries(new URLSearchParams(location.hash.slice(1))) };

    const asked = n => value.ask && n > 0 && steps[n] && steps[n].question && answered < n;
    // A question stands before its step: "next" waits until it is answered or skipped.
    function question(n) {
        const q = steps[n].question, field = tag("input", { inputmode: "decimal", size: "8",
                                                            "aria-label": "your answer" });
        const verdict = tag("span", { role: "status" });
        const done = word => {
            answered = n;
            verdict.textContent = word;
            setTimeout(() => { ask.hidden = true; show(n); at.focus(); }, word ? 900 : 0);
        };
        ask.replaceChildren(tag("label", {}, q.text + " ", field), tag("button", {}, "answer"),
            tag("button", { type: "button", onclick: () => done("") }, "skip"), verdict);
        ask.onsubmit = e => {
            e.preventDefault();
            const x = field.value.trim(), right = typeof q.answer === "number" ?
                Math.abs(parseFloat(x) - q.answer) <= .005 + .01 * Math.abs(q.answer) :
                x === q.answer;
            right ? done("right") : verdict.textContent = "not yet: try again, or skip";
        };
        ask.hidden = false;
        field.focus();
    }
    function show(n) {
        if (!steps.length) return;
        now = Math.max(0, Math.min(steps.length - 1, n));
        slider.max = steps.length - 1;
        slider.value = now;
        where.textContent = `${now + 1} / ${steps.length}`;
        say.textContent = steps[now].say.replace(/^[a-z](?=[a-z])/, a => a.toUpperCase());
        const [left, ...right] = draw(steps[now], value, steps, now).filter(e => e);
        const c = code(steps[now].at);
        out.replaceChildren(tag("div", {}, left), tag("div", {}, ...right), ...(c ? [c] : []));
        const set = Object.entries({ ...value, step: now })
            .filter(([k]) => k !== "own" || value.input === "own");
        history.replaceState(null, "", "#" + new URLSearchParams(set.map(([k, v]) =>
            [k, v === true ? 1 : v || 0])));
    }
    function go(n) {
        const next = n === steps.length && document.querySelector(".slides a.next-page");
        if (next && next.pathname.includes("/steps/")) return location.href = next.href + "?slides";
        for (let k = now + 1; k <= n; k++)
            if (asked(k)) { if (k - 1 !== now) show(k - 1); return question(k); }
        ask.hidden = true;
        show(n);
    }
    function remake(first = 0) {
        for (const [name, c] of Object.entries(choices)) {
            const f = controls.elements[name];
            value[name] = c.type === "checkbox" ? f.checked : c.options || c.type ? f.value :
                +f.value;
            f.labelled.textContent = c.options || c.type ? "" : ` ${f.value}`;
        }
        if (choices.own) controls.elements.own.parentNode.hidden = value.input !== "own";
        answered = first;
        ask.hidden = true;
        steps = [];
        try { steps = make(value); } catch (e) {
            return out.replaceChildren(tag("p", { class: "wrong" }, e.message));
        }
        show(first);
    }
    choices = { ...choices, ask: { label: "ask me first", type: "checkbox", value: 1 } };
    for (const [name, c] of Object.entries(choices)) {
        const f = c.options ?
            tag("select", { name }, ...c.options.map(([v, t]) => tag("option", { value: v }, t))) :
            tag("input", { name, type: c.type || "range", min: `${c.min}`, max: `${c.max}` });
        const start = given[name] ?? c.value;
        if (c.type === "checkbox") f.checked = !!+start;
        else if (start !== undefined) f.value = start;
        f.labelled = tag("b");
        controls.append(tag("label", {}, c.label, f.labelled, f));
        f.addEventListener("input", () => remake());
    }
    const button = (text, label, onclick) =>
        tag("button", { type: "button", "aria-label": label, title: label, onclick }, text);
    slider.oninput = () => show(answered = +slider.value);
    at.tabIndex = 0;
    document.addEventListener("keydown", e => { // not in a control
        const on = () => go(now + 1), back = () => show(now - 1); // a clicker sends pages
        const act = { ArrowRight: on, PageDown: on, ArrowLeft: back, PageUp: back,
                      Home: () => show(0), End: () => show(steps.length - 1),
                      f: () => at.requestFullscreen && at.requestFullscreen() }[e.key];
        if (!act || ![at, document.body].includes(e.target) || e.ctrlKey || e.metaKey ||
            e.altKey) return;
        e.preventDefault();
        act();
    });
    at.append(tag("details", { class: "settings", open: innerWidth > 700 },
                  tag("summary", {}, "choices"), controls), say, ask, out,
        tag("div", { class: "thumb" }, button("◀", "one step back (left arrow)", () =>
            show(now - 1)), slider,
            button("▶", "one step on (right arrow)", () => go(now + 1)), where));
    remake(+given.step || 0);
    if (location.search.includes("slides")) document.documentElement.classList.add("slides");
    if (location.search.includes("selftest")) selftest(at, () => steps.length);
}

// ?selftest: presses the keys itself and writes what each step shows at the page's end, for a test.
function selftest(at, count) {
    const seen = [], text = e => e.textContent;
    const cells = e => [...e.querySelectorAll("td, [data-cell]")].map(text);
    const press = key => at.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    press("Home");
    for (let k = 0; k < count(); k++) {
        const tables = [...at.querySelectorAll("[data-name]")].map(t => [t.dataset.name,
            t.tagName === "TABLE" ? [...t.tBodies[0].rows].map(cells) : [cells(t)]]);
        const now = at.querySelector(".code .now");
        seen.push({ say: text(at.querySelector(".say")), code: now && text(now).trim(),
                    hash: location.hash, shown: Object.fromEntries(tables) });
        press("ArrowRight");
    }
    document.body.append(tag("script", { type: "application/json", id: "selftest" },
                             JSON.stringify(seen).replaceAll("<", "\\u003c")));
}
