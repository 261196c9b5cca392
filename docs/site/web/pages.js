// SPDX-License-Identifier: MIT
// pages.js: stages 01 to 05, one function a page: `make` turns the log of a rung into steps, `draw`
// shows one. All numbers, and all times at which something moves, come from the C code.
"use strict";
const RUNG = { naive: 0, v0: 1, v1: 2, backward0: 3, backward1: 4, online: 5, stream: 6 };
const pages = {};

// --- what the pages share ------------------------------------------------------------------------

const INPUT = { label: "input", options: [["hand", "the lessons' four tokens"],
    ["turned", "the same, keys turned"], ["0", "random, seed 0"], ["1", "random, seed 1"],
    ["2", "random, seed 2"], ["own", "by hand"]] };
const OWN = { label: "rows of Q | K | V", type: "text", value: ["q", "k", "v"].map(t =>
    steps_hand[t].map(r => r.join(" ")).join("; ")).join(" | ") };
const size = (label, min, max, value) => ({ label, min, max, value });
const ROW = size("row to follow", 0, 15, 0), CAUSAL = { label: "causal", type: "checkbox" };

// "1 0; 0 1 | 1 1; 2 0 | 3 1; 0 4": rows by semicolons, Q, K and V by bars.
function written(text) {
    const [Q, K, V] = text.split("|").map(t => t.trim().split(/\s*;\s*/)
        .map(r => r.split(/\s+/).map(Number)));
    const as_Q = M => M && M.length === Q.length && M.every(r => r.length === Q[0].length &&
        r.every(isFinite));
    if (![Q, K, V].every(as_Q) || Q.length > 16 || Q[0].length > 8)
        throw Error("at most 16 rows of 8 numbers for each: 1 0; 0 1 | 1 1; 2 0 | 3 1; 0 4");
    return { Q, K, V };
}

// Fills the input; {N, d} as it came out: the lessons' tokens are four of two channels.
function fill(c, v, more = {}) {
    const hand = v.input === "hand" || v.input === "turned", all = globalThis.steps_hand;
    const given = v.input === "own" ? written(v.own) : hand ? { Q: all.q, dO: all.do,
        K: all[v.input === "hand" ? "k" : "k_turned"],
        V: all[v.input === "hand" ? "v" : "v_turned"] } : null;
    const N = given ? given.Q.length : v.N, d = given ? given.Q[0].length : v.d || 4;
    c.input({ N, d, to: v.causal ? 0 : FREE, seed: given ? 0 : +v.input, given, ...more });
    return { N, d };
}

// P of the whole square, by the first rung: [i][j].
function probabilities(c, N) {
    c.run(RUNG.naive);
    return matrix(c.read("work", N * N), N);
}

const noScores = N => range(N).map(() => Array(N)); // a square of scores that nobody has found yet
const copy = M => M.map(r => [...r]);
function fillIn(S, tile, e) {
    matrix(e.values, e.cols).forEach((r, a) =>
        r.forEach((x, b) => S[tile[0] + a][tile[2] + b] = x));
}

// What all steps know in the end; the last one says so.
const finished = (steps, what) => (steps.forEach((s, k) =>
    Object.assign(s, what, { last: k + 1 === steps.length })), steps);

// The scores found so far, coloured by P.
const square = (s, more) => heat({ rows: s.N, cols: s.N, row: s.row, tile: s.tile,
    value: (i, j) => s.S[i][j], label: `scores: ${s.say}`,
    colour: (i, j) => s.S[i][j] === undefined ? undefined : s.P[i][j], ...more });
const outputs = (name, lse, O, fresh) => table(name, ["lse", ...numbered("O", O[0].length)],
    O.map((r, i) => [`q${i}`, [lse[i], ...r]]), fresh);

const rowName = (name, first, count) => count < 2 ? `${name} ${first}` :
    `${name.replace("query", "querie")}s ${first} to ${first + count - 1}`;
const numbered = (name, n) => range(n).map(k => `${name}${k}`);

// Neighbours with the same key become one step.
function groups(events, key) {
    const all = [];
    for (const e of events) {
        const k = key(e), last = all[all.length - 1];
        if (!k) continue;
        if (last && last.key === k) last.events.push(e);
        else all.push({ key: k, events: [e] });
    }
    return all;
}

const line = e => e && { file: e.file, func: e.func, line: e.line };
const moved = (word, events) => `${word} ${unique(events.map(e => e.name)).join(", ")}: ` +
    `${events.reduce((n, e) => n + e.rows * e.cols, 0)} elements ` +
    `${word === "Load" ? "from" : "to"} slow memory.`;

// --- 01: scores to output ------------------------------------------------------------------------

pages.scores = c => [{ N: size("tokens N", 2, 8, 4), d: size("channels d", 1, 8, 2),
                       causal: CAUSAL, input: INPUT, own: OWN }, v => {
        const { N, d } = fill(c, v), events = c.run(RUNG.naive), steps = [], S = noScores(N);
        const P = matrix(c.read("work", N * N), N), O = matrix(c.read("O", N * d), d);
        const lse = c.read("lse", N), out = O.map(r => r.map(() => 0));
        let i = 0, j = 0, soft = 0; // soft: rows of P found
        const put = (say, e, more) => steps.push({ say, at: line(e), tile: [i, 1, j, 1], N, d, P,
            lse, S: copy(S), soft, out: copy(out), ...more });
        const pairs = events.filter(e => e.func === "score_at");
        for (let k = 0; k < pairs.length; k++) { // pairs that are not seen give no score
            if (pairs[k].op !== "o") continue;
            const next = pairs[k + 1], s = next && next.op === "s" ? next : null;
            [i, , j] = pairs[k].tile;
            S[i][j] = s ? s.values[0] : -Infinity;
            put(s ? `Query ${i} meets key ${j}: the score is ${shown(S[i][j])}.` :
                `Query ${i} does not see key ${j}: its score is minus infinity.`, s || pairs[k]);
        }
        const exps = events.filter(e => e.func === "softmax" && e.op === "e");
        for (i = 0; i < N; i++) {
            soft = i + 1;
            put(`Row ${i} becomes probabilities: each score, less the largest one, into exp, ` +
                `then divided by the sum. lse is ${shown(lse[i])}.`, exps[i * N], {
                question: { text: `What will P of the largest score of row ${i} be?`,
                            answer: Math.max(...P[i]) } });
        }
        const sums = events.filter(e => e.func === "attend_head" && e.op === "o");
        sums.forEach((e, k) => { // the log has O before a key: after it is before the next
            [i, , j] = e.tile;
            out[i] = sums[k + 1] && sums[k + 1].tile[0] === i ? sums[k + 1].values : O[i];
            put(`Output ${i} gains P(${i}, ${j}) = ${shown(P[i][j])} times value ${j}.`, e);
        });
        return steps;
    }, s => {
        const { N, d, P, tile: [i, , j] } = s;
        return [square(s, { colour: (i, j) => i < s.soft ? P[i][j] : undefined,
                            lit: { rows: [i, 1], cols: [j, 1] } }),
            table("S", numbered("k", N), s.S.map((r, i) => [`q${i}`, range(N).map(j => r[j])]),
                  (a, b) => !s.soft && a === i && b === j),
            s.soft ? table("P", numbered("k", N), range(s.soft).map(i => [`q${i}`, P[i]]),
                           a => a === i) : null,
            s.soft === N ? table("O lse", [...numbered("c", d), "lse"],
                s.out.map((r, i) => [`q${i}`, [...r, s.lse[i]]]), (a, k) => a === i && k < d) :
                null];
    }];

// --- 02: online softmax --------------------------------------------------------------------------

pages.online = c => [{ N: size("scores N", 2, 16, 4), input: INPUT, own: OWN,
                       query: size("query", 0, 15, 3) }, v => {
        const { N } = fill(c, v), i = Math.min(N - 1, v.query), events = c.rows(0, i);
        const pushes = events.filter(e => e.op === "p"), out = c.read("O", N);
        const lse = c.read("lse", 1)[0];
        return pushes.map((e, k) => {
            const [m0, l0, s, , m, l, alpha] = e.values;
            return { k, N, pushes, out, lse, at: line(e), alpha, end: k + 1 === N,
                say: `Score ${k} is ${shown(s)}. ` + (m > m0 && k ? "A new maximum: the old sum " +
                    `shrinks by alpha ${shown(alpha)}.` : "The maximum stays.") +
                    ` m is ${shown(m)}, l is ${shown(l)}.`,
                question: !k ? null : m > m0 ? { answer: alpha, text: `m is ${shown(m0)} and the ` +
                    `next score ${shown(s)}: alpha = exp(m_old - m_new) will be` } :
                    { answer: l, text: `m is ${shown(m0)}, l is ${shown(l0)}, the next score ` +
                        `${shown(s)}: l will be` } };
        });
    }, s => {
        const scores = s.pushes.map(e => e.values[2]), now = s.pushes[s.k].values;
        const found = scores.filter(isFinite), low = Math.min(...found), high = Math.max(...found);
        const w = 34, h = 130, y = x => 12 + (high > low ? (h - 24) *
            (high - Math.max(low, x)) / (high - low) : 0);
        const bar = scores.map((x, k) => `<rect x="${k * w + 6}" width="${w - 10}" y="${y(x)}" ` +
            `height="${h - y(x)}" class="bar ${k === s.k ? "lit" : k < s.k ? "" : "open"}">` +
            `<title>score ${k}: ${shown(x)}</title></rect>`).join("");
        const level = `<line x1="0" x2="${s.N * w}" y1="${y(now[4])}" y2="${y(now[4])}" ` +
            `class="m"/><text x="2" y="${y(now[4]) - 3}">m</text>`;
        return [svg(s.N * w + 4, h + 2, bar + level, `row of scores: ${s.say}`),
            table("state", ["m", "l"], [["before", [now[0], now[1]]], ["after", [now[4], now[5]]]],
                  r => r === 1),
            tag("p", { class: "formula" }, `l = ${shown(now[1])} · ${shown(s.alpha)} + exp(` +
                `${shown(now[2])} − ${shown(now[4])}) = ${shown(now[5])}`),
            table("row", numbered("k", s.N), [["score", scores.map((x, k) => k <= s.k ? x : "")],
                ["P", s.end ? s.out : scores.map(() => "")]], (r, k) => k === s.k),
            s.end ? table("lse", ["m + ln l"], [["lse", [s.lse]]]) : null];
    }];

// --- 02: the tree of merges ----------------------------------------------------------------------

pages.tree = c => [{ N: size("scores N", 65, 1024, 480), query: size("query", 0, 63, 0),
                     seed: size("seed", 0, 9, 0) }, v => {
        c.input({ N: v.N, d: 4, seed: v.seed });
        const events = c.rows(1, v.query).filter(e => e.op === "m" || e.name === "block");
        const nodes = [], waiting = [], steps = [];
        let rest = null; // the state after the last block, while the tree is closed
        const same = (n, m, l) => n.m === undefined || (n.m === m && n.l === l);
        for (const e of events) {
            if (e.op === "<") {
                nodes.push({ first: nodes.filter(n => !n.of).length, blocks: 1, level: 0 });
                waiting.push(nodes.length - 1);
                steps.push({ at: line(e), now: [nodes.length - 1], say: `Block ` +
                    `${nodes[nodes.length - 1].first}: ${e.cols} scores are read and make a ` +
                    "pair (m, l) of their own." });
            } else {
                const [ma, la, mb, lb, m, l] = e.values, closing = mb === -Infinity && lb === 0;
                if (closing) { // merge(waiting, nothing)
                    rest = waiting.pop();
                    Object.assign(nodes[rest], { m: ma, l: la });
                    steps.push({ at: line(e), now: [rest], say: "The blocks are all read. The " +
                        "subtrees that still wait are merged, the youngest first." });
                    continue;
                }
                const b = rest === null ? waiting.pop() : rest, a = waiting.pop();
                if (!same(nodes[a], ma, la) || !same(nodes[b], mb, lb))
                    throw Error("not this tree");
                Object.assign(nodes[a], { m: ma, l: la });
                Object.assign(nodes[b], { m: mb, l: lb });
                nodes.push({ of: [a, b], first: nodes[a].first, m, l,
                             level: 1 + Math.max(nodes[a].level, nodes[b].level),
                             blocks: nodes[a].blocks + nodes[b].blocks });
                if (rest === null) waiting.push(nodes.length - 1); else rest = nodes.length - 1;
                const who = n => rowName("block", n.first, n.blocks);
                steps.push({ at: line(e), now: [nodes.length - 1, a, b],
                    question: { answer: m, text: `(${shown(ma)}, ${shown(la)}) and ` +
                        `(${shown(mb)}, ${shown(lb)}) merge: m will be` },
                    say: `${who(nodes[a])} and ${who(nodes[b])} merge: m is ${shown(m)}, l is ` +
                        `${shown(l)}.` });
            }
            steps[steps.length - 1].nodes = nodes.length;
        }
        return finished(steps, { tree: nodes, lse: c.read("lse", 1)[0], N: v.N });
    }, s => {
        const w = 44, deep = Math.max(...s.tree.map(n => n.level)), count = Math.ceil(s.N / 64);
        const x = n => w * (n.first + n.blocks / 2), y = n => 22 + (deep - n.level) * 40;
        const edges = n => (n.of || []).map(o => `<line x1="${x(n)}" y1="${y(n)}" ` +
            `x2="${x(s.tree[o])}" y2="${y(s.tree[o])}"/>`).join("");
        const kind = k => k === s.now[0] ? "lit" : s.now.includes(k) ? "part" : "";
        const out = s.tree.slice(0, s.nodes).map(edges).concat(s.tree.slice(0, s.nodes).map(
            (n, k) => `<g class="node ${kind(k)}"><circle cx="${x(n)}" cy="${y(n)}" r="15"/>` +
            `<text x="${x(n)}" y="${y(n) + 4}" text-anchor="middle">` +
            `${n.blocks > 1 ? n.blocks : n.first}</text><title>${rowName("block", n.first,
                n.blocks)}: m = ${shown(n.m)}, l = ${shown(n.l)}</title></g>`));
        const list = s.now.map(k => s.tree[k]);
        return [svg(count * w + 4, 44 + deep * 40, out.join(""), `tree of merges: ${s.say}`),
            table("merge", ["m", "l"], list.map((n, k) => [`${["=", "a", "b"][k]}: ` +
                `${rowName("block", n.first, n.blocks)}`, [n.m, n.l]]), r => r === 0),
            s.last ? table("lse", ["m + ln l"], [["row", [s.lse]]]) : null];
    }];

// --- 03: tiles -----------------------------------------------------------------------------------

const TILE_NAMES = ["Q_i", "K_j", "V_j", "O_i", "S", "m_i", "l_i"];

// The log of a rung of stage 03 as steps: what moves, scores, m and l, the product.
function flashSteps(events, { N, d, row }) {
    const m = Array(N).fill(-Infinity), l = Array(N).fill(0), O = range(N * d).map(() => 0);
    const lse = Array(N), S = noScores(N), steps = [], fast = {}, work = {};
    for (const e of events)
        if (e.buffer === "work") work[e.name] = Math.min(work[e.name] ?? Infinity, e.offset);
    let q = 0, tile = [0, 0, 0, 0];
    function apply(e, fresh) {
        const where = e.buffer === "work" && e.name !== "O_i" ? e.offset - work[e.name] :
            e.buffer === "lse" ? e.offset : e.buffer ? e.offset / d : null;
        if (e.op === "<" && e.name !== "K_j" && e.name !== "V_j") q = where;
        if (e.name === "S" && e.op === "=") {
            [q] = tile = e.tile;
            fillIn(S, tile, e);
        }
        const first = e.name === "K_j" || e.name === "V_j" ? where : where ?? q;
        const to = e.buffer === "lse" ? lse : { m_i: m, l_i: l, O_i: O }[e.name];
        if (to) e.values.forEach((x, k) => to[first * e.cols + k] = x);
        fast[e.name] = { first, count: e.rows * e.cols, ...e };
        fresh.add(e.name);
    }
    const kind = e => e.op === "<" ?
        `load ${"KV".includes(e.name[0]) ? "keys" : "queries"} ${e.func}` :
        e.op === ">" ? `store ${e.func} ${work.m_i !== undefined && e.buffer === "lse"}` :
        e.op === "e" || e.op === "*" || e.name === "m_i" || e.name === "l_i" ? "update" :
        e.name === "S" ? "scores" : e.name === "O_i" ? "product" : null;
    for (const g of groups(events.filter(e => "<>=*e".includes(e.op)), kind)) {
        const before = { m: m[row], l: l[row], O: O.slice(row * d, row * d + d) };
        const last = g.events[g.events.length - 1], fresh = new Set();
        g.events.forEach(e => apply(e, fresh));
        const exps = g.events.filter(e => e.op === "e" && e.words.includes("m_i["));
        const inside = row >= tile[0] && row < tile[0] + tile[1], alpha = inside && exps.length ?
            exps[Math.min(exps.length - 1, row - tile[0])].values[0] : undefined;
        const qs = rowName("query", tile[0], tile[1]), ks = rowName("key", tile[2], tile[3]);
        const word = g.key.split(" ")[0];
        steps.push({ word, fast: TILE_NAMES.map(t => [t, (fast[t] || {}).count || 0, fresh.has(t)]),
            tiles: { ...fast }, m: [...m], l: [...l], O: [...O], lse: [...lse], tile, before, N, d,
            row, alpha, S: copy(S), loads: last.loads, stores: last.stores,
            at: line(exps[0] || g.events.find(e => e.name === "S" || e.op === "=") || last),
            say: { load: moved("Load", g.events), store: moved("Store", g.events),
                scores: `Scores of ${qs} with ${ks}.`,
                update: alpha === undefined ? `m, l and P of ${qs} follow the new scores.` :
                    `Row ${row}: m goes from ${shown(before.m)} to ${shown(m[row])}, so alpha is ` +
                    `${shown(alpha)}, and l becomes ${shown(l[row])}.`,
                product: `O of ${qs} gains P times V of ${ks}.` }[word],
            question: word === "update" && alpha !== undefined && before.m !== -Infinity ?
                { answer: alpha, text: `Row ${row} has m = ${shown(before.m)}; its largest new ` +
                    `score is ${shown(Math.max(...S[row].slice(tile[2], tile[2] + tile[3])))}. ` +
                    "alpha = exp(m_old − m_new) will be" } : null });
    }
    return steps;
}

pages.flash = c => [{ rung: { label: "loop order", options: [["v0", "v0: keys outside"],
                          ["v1", "v1: queries outside"]] },
        N: size("tokens N", 2, 16, 6), d: size("channels d", 1, 8, 2), causal: CAUSAL,
        M: size("fast memory M", 4, 256, 16), input: { ...INPUT, value: "0" }, own: OWN, row: ROW },
    v => {
        const { N, d } = fill(c, v, { sram: v.M }), P = probabilities(c, N);
        const row = Math.min(N - 1, v.row), end = c.run(RUNG[v.rung === "v0" ? "v1" : "v0"]).pop();
        const events = c.run(RUNG[v.rung]), steps = flashSteps(events, { N, d, row });
        return finished(steps, { P, other: end, result: matrix(c.read("O", N * d), d),
                                 results: c.read("lse", N) });
    }, (s, v) => {
        const { N, d, row } = s, span = t => s.tiles[t] && [s.tiles[t].first, s.tiles[t].rows];
        const O = matrix(s.O, d), cells = ["m", "l", ...numbered("O", d)];
        return [square(s, { lit: { rows: span("Q_i"), cols: span("K_j") } }),
            boxes("Fast memory", s.fast, v.M),
            bars("traffic", [["loads", s.loads, 0, s.other.loads],
                             ["stores", s.stores, 0, s.other.stores]]),
            tag("p", { class: "note" }, "Elements moved so far; the outline is where the other " +
                "loop order ends. M is the paper's four tiles; S, m and l come on top. O is " +
                `divided by l ${v.rung === "v0" ? "after each tile" : "when its row ends"}.`),
            table(`row q${row}`, cells, [["before", [s.before.m, s.before.l, ...s.before.O]],
                ["now", [s.m[row], s.l[row], ...O[row]]]], r => r === 1),
            s.tile[1] ? table("S_ij", numbered("k", s.tile[3]), range(s.tile[1]).map(a =>
                [`q${s.tile[0] + a}`, s.S[s.tile[0] + a].slice(s.tile[2], s.tile[2] + s.tile[3])]),
                a => s.tile[0] + a === row) : null,
            s.tiles.V_j ? table("V_j", numbered("c", d), matrix(s.tiles.V_j.values, d).map((r, k) =>
                [`k${s.tiles.V_j.first + k}`, r])) : null,
            tag("details", {}, tag("summary", {}, "all rows"),
                table("m l O", cells, range(N).map(i => [`q${i}`, [s.m[i], s.l[i], ...O[i]]]),
                      i => i >= s.tile[0] && i < s.tile[0] + s.tile[1])),
            s.last ? outputs("result", s.results, s.result) : null];
    }];

// --- 04: backward tiles --------------------------------------------------------------------------

const PRODUCTS = { S: "S = scale Q Kᵀ", dS: "dP = dO Vᵀ", dV_j: "dV += Pᵀ dO",
                   dQ_i: "dQ += scale dS K", dK_j: "dK += scale dSᵀ Q" };

pages.backward = c => [{ rung: { label: "rung", options: [["backward0", "v0: delta in each tile"],
                             ["backward1", "v1: delta once"]] },
        N: size("tokens N", 2, 12, 4), d: size("channels d", 1, 8, 2), Br: size("rows Br", 1, 8, 2),
        Bc: size("keys Bc", 1, 8, 2), causal: CAUSAL, input: INPUT, own: OWN, row: ROW }, v => {
        const { N, d } = fill(c, v, { Br: v.Br, Bc: v.Bc }), P = probabilities(c, N);
        const events = c.run(RUNG[v.rung], 1).filter(e => "<>=*".includes(e.op));
        const end = ["dQ", "dK", "dV"].map(t => [t, matrix(c.read(t, N * d), d)]);
        const row = Math.min(N - 1, v.row), steps = [], fast = {}, S = noScores(N);
        let tile = [0, 0, 0, 0], key = 0, factor = null;
        const kind = e => e.op === "<" ? `load ${"KV".includes(e.name[0])} ${e.func}` :
            e.op === ">" ? `store ${e.func}` : e.op === "*" ? null : `product ${e.name}`;
        const keyed = e => { // P and dS are factors of the products that follow
            if (e.op === "*" && (e.name === "P" || e.name === "dS")) factor = e;
            e.of = factor;
            return kind(e);
        };
        for (const g of groups(events, keyed)) {
            const last = g.events[g.events.length - 1], fresh = new Set();
            const word = g.key.split(" ")[0];
            for (const e of g.events) {
                if (e.op === "<" && e.name === "K_j") key = e.offset / d;
                if (e.name === "S") {
                    tile = e.tile;
                    fillIn(S, tile, e);
                }
                const name = e.name === "S" ? "P" : e.name;
                fast[name] = { count: e.rows * e.cols, ...e };
                if (e.of && e.op === "=")
                    fast[e.of.name] = { count: e.of.rows * e.of.cols, ...e.of };
                fresh.add(name);
            }
            const qs = rowName("query", tile[0], tile[1]), ks = rowName("key", tile[2], tile[3]);
            const name = last.name;
            steps.push({ word, name, N, d, row, tile, key, P, end, S: copy(S), at: line(last),
                say: { load: moved("Load", g.events), store: moved("Store", g.events),
                       product: `${PRODUCTS[name]}: ${qs}, ${ks}.` }[word],
                fast: Object.entries(fast).map(([t, e]) => [t, e.count, fresh.has(t)]),
                tiles: { ...fast }, loads: last.loads, stores: last.stores,
                question: word === "product" && name === "dV_j" && tile[3] ? { answer:
                    `${last.rows} x ${last.cols}`, text: `P is ${tile[1]} x ${tile[3]}, dO ` +
                    `${tile[1]} x ${d}. dV_j = Pᵀ dO will be (rows x columns)` } : null });
        }
        return finished(steps, {});
    }, (s, v) => {
        const keys = range(s.tile[3]).map(k => `k${k + s.tile[2]}`);
        const show = (name, label, cols) => {
            const e = s.tiles[name];
            return e && e.values.length ? table(name, cols || numbered("c", e.cols),
                matrix(e.values, e.cols).map((r, k) => [`${label}${k + (label === "q" ? s.tile[0] :
                    s.key)}`, r]), () => s.name === name) : null;
        };
        return [square(s, { lit: { rows: s.tile.slice(0, 2), cols: s.tile.slice(2) } }),
            tag("p", { class: "chips" }, ...Object.entries(PRODUCTS).map(([n, t]) => tag("span",
                { class: s.word === "product" && s.name === n ? "lit" : "" }, t))),
            boxes("Fast memory", s.fast, 0),
            bars("traffic", [["loads", s.loads], ["stores", s.stores]]),
            tag("details", { open: true, class: "row" }, tag("summary", {}, "the tile's numbers: " +
                "in the place of P first S, in the place of dS first dP"), show("P", "q", keys),
                show("dS", "q", keys), show("dQ_i", "q"), show("dK_j", "k"), show("dV_j", "k")),
            ...(s.last ? s.end.map(([t, rows]) => table(t, numbered("c", s.d),
                rows.map((r, k) => [`${t[1] === "Q" ? "q" : "k"}${k}`, r]))) : [])];
    }];

// --- 05: blocks in any order ---------------------------------------------------------------------

const ORDERS = { rows: (i, j) => 99 * i + j, columns: (i, j) => 99 * j + i,
                 diagonal: (i, j) => 99 * (j - i) + i, backwards: (i, j) => -99 * i - j,
                 shuffled: (i, j) => (53 * i + 29 * j + 13) % 101 };

pages.blocks = c => [{ N: size("tokens N", 4, 16, 8), d: size("channels d", 1, 8, 2),
        Br: size("queries of a block", 1, 8, 2), Bc: size("keys of a block", 1, 8, 2),
        window: size("window (keys back)", 0, 15, 3), order: { label: "order of the blocks",
            options: Object.keys(ORDERS).map(o => [o, o]) },
        input: { ...INPUT, value: "0" }, own: OWN, row: { ...ROW, value: 4 } }, v => {
        const more = { from: -v.window, to: 0, Br: v.Br, Bc: v.Bc }, { N, d } = fill(c, v, more);
        const P = probabilities(c, N), Tr = Math.ceil(N / v.Br), Tc = Math.ceil(N / v.Bc);
        const turn = t => ORDERS[v.order](Math.floor(t / Tc), t % Tc);
        const visits = range(Tr * Tc).sort((a, b) => turn(a) - turn(b));
        c.visits(visits);
        const events = c.run(RUNG.online), state = { O: range(N * d).map(() => 0),
                                                     lse: Array(N).fill(-Infinity) };
        const row = Math.min(N - 1, v.row), took = [], steps = [], S = noScores(N);
        for (const e of events) {
            if (e.op === "f" && e.func === "take_step") took.push([]);
            took.length && took[took.length - 1].push(e);
        }
        took.forEach((list, t) => {
            const i = Math.floor(visits[t] / Tc) * v.Br, j = visits[t] % Tc * v.Bc;
            const tile = [i, Math.min(v.Br, N - i), j, Math.min(v.Bc, N - j)];
            const before = [state.lse[row], ...state.O.slice(row * d, row * d + d)];
            let weight;
            for (const e of list) {
                if (e.op === "=" && e.name === "S") matrix(e.values, e.cols).forEach((r, a) =>
                    r.forEach((x, b) => {
                        const apart = j + b - i - a; // hidden after the product
                        S[i + a][j + b] = apart > 0 || apart < -v.window ? -Infinity : x;
                    }));
                if (e.op === ">") e.values.forEach((x, k) => state.O[e.offset + k] = x);
                if (e.op === ">" && e.offset === row * d) weight = true;
                if (e.name === "lse") state.lse = e.values;
            }
            const merge = list.find(e => e.func === "merge_row");
            const seen = list.some(e => e.op === "="), one = `Block (${i / v.Br}, ${j / v.Bc})`;
            const own = list.find(e => e.op === "*" && e.name === "S");
            steps.push({ N, d, row, tile, P, S: copy(S), O: [...state.O], lse: [...state.lse],
                before, at: line(merge || list[list.length - 1]), seen, visits, t, Tr, Tc,
                own: own && matrix(own.values, own.cols),
                say: !seen ? `${one} lies outside the window: nothing is read.` : weight ?
                    `${one}: row ${row} merges what it gives; lse goes from ${shown(before[0])} ` +
                    `to ${shown(state.lse[row])}.` :
                    `${one} is merged into its rows; row ${row} gains nothing.`,
                question: t ? { answer: seen ? "yes" : "no", text: `${one} comes next: rows ${i} ` +
                    `to ${i + tile[1] - 1}, keys ${j} to ${j + tile[3] - 1}, window ` +
                    `${v.window}. Is it read? (yes or no)` } : null });
        });
        return finished(steps, { result: matrix(c.read("O", N * d), d),
                                 results: c.read("lse", N) });
    }, s => {
        const { d, row } = s, O = matrix(s.O, d), lit = s.seen ? { rows: s.tile.slice(0, 2),
                                                                   cols: s.tile.slice(2) } : {};
        return [square(s, { lit }),
            tag("p", { class: "chips" }, ...s.visits.map((b, t) => tag("span",
                { class: t === s.t ? "lit" : t < s.t ? "done" : "" },
                `${Math.floor(b / s.Tc)},${b % s.Tc}`))),
            table(`row q${row}`, ["lse", ...numbered("O", d)], [["before", s.before],
                ["now", [s.lse[row], ...O[row]]]], r => r === 1),
            tag("details", {}, tag("summary", {}, "all rows, and P of the block alone"),
                outputs("lse O", s.lse, O),
                s.own ? table("P of the block", numbered("k", s.tile[3]),
                    s.own.map((r, a) => [`q${s.tile[0] + a}`, r])) : null),
            s.last ? outputs("result", s.results, s.result) : null];
    }];

// --- 05: the rolling cache -----------------------------------------------------------------------

pages.cache = c => [{ N: size("tokens N", 2, 16, 8), d: size("channels d", 1, 8, 2),
                      window: size("window (keys back)", 0, 7, 2),
                      input: { ...INPUT, value: "0" }, own: OWN }, v => {
        const { N, d } = fill(c, v, { from: -v.window, to: 0 }), V = matrix(c.read("V", N * d), d);
        const P = probabilities(c, N), events = c.run(RUNG.stream), steps = [], at = {};
        const O = matrix(c.read("O", N * d), d), lse = c.read("lse", N), S = noScores(N);
        const slots = Math.min(v.window + 1, N);
        for (const e of events) {
            if (e.func !== "attend_row" || e.op !== "=") continue;
            at[e.name] = e;
            if (e.name !== "P") continue;
            const t = steps.length; // who is in a slot: the token whose V lies there
            const held = matrix(at.V.values, d).map(r =>
                range(t + 1).filter(k => V[k].every((x, n) => x === r[n])).pop());
            const share = at.P.values.map(x => x / at.l.values[0]);
            held.forEach((k, slot) => S[t][k] = at.S.values[slot]);
            const gone = t >= slots ? t - slots : null;
            const tile = [t, 1, Math.min(...held), held.length];
            steps.push({ t, N, row: t, tile, held, share, P, O, lse, slots, S: copy(S),
                at: line(e), say: `Token ${t} arrives in slot ${held.indexOf(t)}` +
                    (gone === null ? "." : ` and token ${gone} is forgotten.`) + ` Query ${t} ` +
                    `asks all that is in the cache: lse is ${shown(lse[t])}.`,
                question: t ? { answer: held.indexOf(t), text: `Token ${t} comes next, and the ` +
                    `cache has ${slots} slots. In which slot will it be?` } : null });
        }
        return steps;
    }, s => [square(s, { lit: { rows: [s.t, 1] } }),
        tag("div", { class: "slots" }, ...range(s.slots).map(k => tag("span",
            { class: s.held[k] === s.t ? "lit" : s.held[k] === undefined ? "open" : "" },
            tag("small", {}, `slot ${k}`), s.held[k] === undefined ? "" : `k${s.held[k]}`,
            tag("i", { style: `height:${100 * (s.share[k] || 0)}%` })))),
        table("slots", numbered("slot ", s.held.length), [["token", s.held.map(k => `${k}`)],
            ["P", s.share]], (r, k) => s.held[k] === s.t),
        outputs("result", s.lse, s.O.slice(0, s.t + 1), r => r === s.t)]];

addEventListener("DOMContentLoaded", async () => {
    const bytes = Uint8Array.from(atob(steps_wasm_base64), b => b.charCodeAt(0));
    for (const at of document.querySelectorAll("[data-steps]"))
        stepPage(at, ...pages[at.dataset.steps](await loadSteps(bytes)));
});
