// SPDX-License-Identifier: MIT
// ring.js: stage 06: ranks on a circle, who holds whose block, what travels, and how one token's
// (lse, O) grows. The timetable is the one that the method writes down; the numbers of the token
// come from a replay of it by the library's block kernel. Registers in `pages` (pages.js).
"use strict";
const METHODS = [["7", "ring-minimal"], ["1", "ring"], ["2", "burst"], ["3", "allgather"],
                 ["5", "ring-double"]];
const TENSORS = ["Q", "K", "V", "O", "lse", "delta", "dO", "dQ", "dK", "dV"];
const hue = (r, G, dim) => `hsl(${Math.round(360 * r / G + 20)} 65% 50% / ${dim ? .25 : .75})`;
const unique = list => [...new Set(list)];

pages.ring = c => [{ ranks: size("ranks", 2, 8, 4), N: size("tokens N", 8, 64, 16),
        method: { label: "method", options: METHODS, value: "1" },
        layout: { label: "layout", options: [["0", "contiguous"], ["1", "zigzag"], ["2",
            "striped"]] },
        causal: { label: "causal", type: "checkbox", value: 1 },
        left: size("window (-1: none)", -1, 32, -1),
        backward: { label: "backward too", type: "checkbox" }, d: size("channels d", 1, 8, 2),
        seed: size("seed", 0, 9, 0), row: { ...size("token to follow", 0, 63, 13) } }, v => {
        c.input({ N: v.N, d: v.d, seed: v.seed });
        const log = c.ring(+v.method, +v.layout, v.ranks, v.causal ? 1 : 0, v.left, v.backward ? 1 :
            0);
        const owner = Array(v.N), pairs = [], row = Math.min(v.N - 1, v.row), steps = [];
        const lse = log.filter(e => e.op === "=" && e.words === "lse").map(e => e.values);
        const O = log.filter(e => e.op === "=" && e.words === "O").map(e => matrix(e.values, v.d));
        const lines = log.filter(e => e.op === "r").map(e => e.values.length &&
            Object.assign(e.values, { at: line(e) }));
        for (const r of lines.filter(r => r[0] === 0))
            range(r[4]).forEach(t => owner[r[2] + t * r[3]] = r[1]);
        for (const r of lines.filter(r => r[0] % 2)) { // quarters of a block are one
            const same = pairs.find(p => p.slice(1, 6).join() === r.slice(1, 6).join());
            same ? same[6] += r[6] : pairs.push(Object.assign([...r], { at: r.at }));
        }
        for (const pass of [0, 1]) {
            const work = pairs.filter(r => r[1] === pass);
            const sent = lines.filter(r => r[0] === 2 && r[1] === pass);
            const count = work.length ? 1 + Math.max(...work.map(r => r[2])) : 0;
            for (let t = 0; t < count; t++) {
                const now = work.filter(r => r[2] === t), mine = now.find(r => r[4] === owner[row]);
                const rank = owner[row], held = mine && (mine[0] === 1 ? `keys of rank ${mine[5]}` :
                    `queries of rank ${rank} at rank ${mine[3]}`);
                steps.push({ pass, t, count, owner, row, rank, all: work, work: now, d: v.d,
                    sent: sent.filter(r => r[2] === t), lse, O, big: true,
                    at: (mine || now[0] || {}).at,
                        say: `${pass ? "Backward" : "Forward"}, step ${t}: ` +
                    (mine ? (mine[0] === 3 ? `the ${held}` : `token ${row} of rank ${rank}`) +
                    (mine[6] ? " meet" : " see nothing of") + (mine[0] === 3 ? " its keys." :
                    `${mine[6] ? "s" : ""} the ${held}.`) : `rank ${rank} has no work.`) + (pass ?
                        "" :
                    ` Its lse is ${near(lse[t][row])}.`),
                    question: t && mine && mine[0] === 1 ? { answer: mine[5],
                        text: "Whose keys will rank " +
                        `${rank} work with in step ${t}?` } : null });
            }
        }
        return steps;
    }, (s, v) => {
        const G = v.ranks, R = 120, mid = 165, out = [];
        const place = r => [mid + R * Math.sin(2 * Math.PI * r / G),
            mid - R * Math.cos(2 * Math.PI * r / G)];
        const most = Math.max(1, ...s.all.map(r => r[6])), bytes = {};
        s.sent.forEach(m => bytes[`${m[3]},${m[4]}`] = (bytes[`${m[3]},${m[4]}`] || 0) + m[6]);
        const wide = Math.max(1, ...Object.values(bytes));
        for (const [way, n] of Object.entries(bytes)) {
            const [a, b] = way.split(","), [x, y] = place(+a), [p, q] = place(+b), near_by = .25;
            const cx = (x + p) / 2 + (mid - (x + p) / 2) * -near_by, cy = (y + q) / 2 +
                (mid - (y + q) / 2) * -near_by;
            const what = unique(s.sent.filter(m => `${m[3]},${m[4]}` === way).map(m =>
                TENSORS[m[5]]));
            const tx = (x + 2 * cx + p) / 4, ty = (y + 2 * cy +
                q) / 4; // where the arc is half done
            const turn = Math.atan2(q - y, p - x) * 180 / Math.PI;
            out.push(`<path d="M-9 -11 L11 0 L-9 11 Z" class="head" transform="translate(${tx} ` +
                `${ty}) ` +
                `rotate(${turn})"/><path d="M${x} ${y} Q${cx} ${cy} ${p} ${q}" class="arc" ` +
                `style="stroke-width:${2 + 7 * n / wide}"><title>${what.join(" ")}: ${n} bytes ` +
                    `from ${a} to ${b}</title></path>`);
        }
        range(G).forEach(g => {
            const [x, y] = place(g), work = s.work.filter(r => r[3] === g), w = work[0];
            const guest = w && (w[0] === 1 ? w[5] : w[4]);
            const share = Math.min(1, work.reduce((n, r) => n + r[6], 0) / most);
            out.push(`<g class="rank"><circle cx="${x}" cy="${y}" r="30" style="fill:` +
                `var(--color-background-primary)"/><circle cx="${x}" cy="${y}" r="30" ` +
                    `style="fill:` +
                `${hue(g, G, true)};stroke:${hue(g, G)};stroke-width:${g === s.rank ? 4 : 2}"/>` +
                (w ? `<rect x="${x - 20}" y="${y - 2}" width="40" height="18" rx="3" style="fill:` +
                `${hue(guest, G, !w[6])}"/><text x="${x}" y="${y + 11}" text-anchor="middle">` +
                `${w[0] === 1 ? "K" : "Q"}${guest}</text><rect x="${x - 20}" y="${y + 17}" ` +
                    `height="4" ` +
                `width="${40 * share}" class="bar"/>` : "") + `<text x="${x}" y="${y - 8}" ` +
                `text-anchor="middle">rank ${g}</text></g>`);
        });
        const seen = range(G).map(() => Array(G));
        s.all.filter(r => r[2] <= s.t).forEach(r => seen[r[4]][r[5]] = r[6]);
        const total = range(G).map(g => s.all.filter(r => r[3] === g).reduce((n, r) => n + r[6],
            0));
        const sum = total.reduce((a, b) => a + b, 0) || 1, word = r => r[6] ? `${r[6]}` : "skip";
        const w = 46, gantt = [];
        range(G).forEach(g => gantt.push(`<text x="2" y="${14 + g * 17}">rank ${g}</text>`));
        range(G).forEach(g => range(s.count).forEach(t => {
            const r = s.all.find(r => r[3] === g && r[2] === t);
            if (!r) return;
            const from = r[0] === 1 ? r[5] : r[4], long = (w - 4) * r[6] / most;
            gantt.push(`<rect x="${52 + t * w}" y="${4 + g * 17}" width="${Math.max(2, long)}" ` +
                `height="13" ` +
                `style="fill:${hue(from, G, t > s.t)}"><title>rank ${g}, step ${t}: ${word(r)} ` +
                    `pairs` +
                `</title></rect>`);
        }));
        gantt.push(`<line x1="${52 + (s.t + 1) * w - 2}" x2="${52 + (s.t + 1) * w - 2}" y1="0" ` +
            `y2="${G * 17 + 4}" class="m"/>`);
        const to = m => unique(m.map(r => r[4])).map(p => `${unique(m.filter(r => r[4] === p)
            .map(r => TENSORS[r[5]])).join(" ")} to ${p}`).join(", ");
        return [svg(330, 330, out.join(""), `ring: ${s.say}`),
            tag("div", { class: "tokens", title: "who has which token" }, ...s.owner.map((r, n) =>
                tag("i",
                { style: `background:${hue(r, G, n !== s.row)}`,
                    title: `token ${n}: rank ${r}` }))),
            svg(60 + s.count * w, G * 17 + 6, gantt.join(""), "work of each rank, step by step"),
            heat({ rows: G, cols: G, value: (q, k) => seen[q][k], colour: (q, k) =>
                seen[q][k] === undefined ? undefined : seen[q][k] / most,
                lit: { rows: [s.rank, 1] }, row: s.rank, label: "pairs seen, rank by rank" }),
            s.pass ? null : table(`token ${s.row}`, ["lse", ...numbered("O", s.d)], [["before",
                s.t ?
                [s.lse[s.t - 1][s.row], ...s.O[s.t - 1][s.row]] : ["-inf", ...range(s.d).map(() =>
                    0)]],
                ["now", [s.lse[s.t][s.row], ...s.O[s.t][s.row]]]], r => r === 1),
            tag("details", {}, tag("summary", {}, "all ranks, all tokens"),
                table("ranks", ["works with", "visible pairs", "share of all work",
                    "sends meanwhile"], range(G).map(g => {
                        const mine = s.work.filter(r => r[3] === g), m = s.sent.filter(r =>
                            r[3] === g);
                        return [`rank ${g}`, [unique(mine.map(r => r[0] === 1 ? `K${r[5]}` :
                            `Q${r[4]}`))
                            .join(" ") || "nothing", mine.map(word).join(" "),
                            `${Math.round(100 * total[g] / sum)} %`, to(m) || "nothing"]];
                    })),
                s.pass ? null : table("lse O", ["lse", ...numbered("O", s.d)], s.lse[s.t].map((x,
                    n) =>
                    [`q${n}`, [x, ...s.O[s.t][n]]]), n => n === s.row))];
    }];
