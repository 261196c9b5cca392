# SPDX-License-Identifier: MIT
# The course's commands. Sourced by ./ladder.
#
# Interface: ladder_grade N|SUITE SUBMISSION... [OPTIONS], ladder_handout N --out DIR [OPTIONS].

# with_judge TOOL ARGUMENTS...: paths are meant from where the user stands
with_judge() {
    for word; do
        case $word in
        --help | -h) exec python3 "common/course/$1" --help ;;
        esac
    done
    tool=common/course/$1
    shift
    mkdir -p build
    build_programs common/course/attn_judge common/course/attn_runner common/course/attn_jail
    LADDER_FROM=$OLDPWD exec python3 "$tool" --build build/demo "$@"
}

ladder_grade() {
    case ${1:-} in
    [1-9]) with_judge grade_class.py "$@" ;;
    *) with_judge grade.py "$@" ;;
    esac
}

ladder_handout() {
    with_judge handout.py "$@"
}
