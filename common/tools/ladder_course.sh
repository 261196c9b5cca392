# SPDX-License-Identifier: MIT
# The course's commands. Sourced by ./ladder.
#
# Interface: ladder_grade SUITE SUBMISSION... [OPTIONS].

# Paths are meant from where the user stands.
ladder_grade() {
    case " $* " in
    *' --help '* | *' -h '*) exec python3 common/tools/grade.py --help ;;
    esac
    mkdir -p build
    build_programs common/judge/attn_judge common/judge/attn_runner \
        common/judge/attn_jail
    LADDER_FROM=$OLDPWD exec python3 common/tools/grade.py --build build/demo "$@"
}
