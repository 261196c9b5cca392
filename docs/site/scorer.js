// SPDX-License-Identifier: MIT
// scorer.js: the search puts lessons and step pages first, lab notes last. (Sphinx takes the whole
// object in the place of its own; the numbers but for score() are its own.)
var Scorer = {
    score: ([page, , , , score]) => score + (/^docs\/(0\d_|00_|steps\/)/.test(page) ? 30 :
        /^docs\/glossary/.test(page) ? 20 : /^docs\/(lab|results)\//.test(page) ? -30 : 0),
    objNameMatch: 11, objPartialMatch: 6, objPrio: { 0: 15, 1: 5, 2: -5 }, objPrioDefault: 0,
    title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
