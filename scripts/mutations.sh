# shellcheck shell=bash
# Mutations of one build: in a copy of the tree each place checks by name whether it is omitted, and GINLAB_LEFT_OUT
# names the one that is. Sourced from the repository's root by worst-mutants.sh and nccl-mutants.sh. They set:
#
#   script      their name, for messages
#   tree        the folder of the copy
#   only        a pattern of names; empty: all mutations
#   library     the file that gets the question, and question: its path in Rust, from every file that is changed

names=() files=() checks=()
declare -A changed
fail() {
    # shellcheck disable=SC2154  # set by whoever sources this
    echo "$script: $*" >&2
    exit 2
}
# mutation NAME FILE CHECKS FROM TO: FROM is in FILE once. In TO, KEPT is false when it is left out. CHECKS: what must fail then, in the words of
# the script.
mutation() {
    local name=$1 file=$2 from=$4 to=$5 text rest
    # shellcheck disable=SC2154
    if [[ -n $only && ! $name =~ ^($only) ]]; then return; fi
    text=${changed[$file]-$(<"$file")}
    rest=${text/"$from"/}
    [[ $rest != "$text" ]] || fail "$name: $file has no longer: $from"
    [[ ${rest/"$from"/} == "$rest" ]] || fail "$name: $file has more than once: $from"
    [[ $to == *KEPT* ]] || fail "$name: nothing is left out"
    # shellcheck disable=SC2154
    to=${to//KEPT/"$question(\"$name\")"}
    changed[$file]=${text/"$from"/"$to"}
    # shellcheck disable=SC2034
    names+=("$name") files+=("$file") checks+=("$3")
}
# without NAME FILE CHECKS STATEMENT: the same, of a statement.
without() { mutation "$1" "$2" "$3" "$4" "if KEPT { $4 }"; }

# Copies the tree, with all mutations. A file of the copy is written only where it differs, so that cargo sees what has changed.
copy() {
    local path list
    # shellcheck disable=SC2154
    changed[$library]=${changed[$library]-$(<"$library")}'

/// Whether what has this name is not left out (scripts/mutations.sh).
pub fn kept(name: &str) -> bool {
    static LEFT_OUT: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    LEFT_OUT.get_or_init(|| std::env::var("GINLAB_LEFT_OUT").unwrap_or_default()) != name
}'
    # shellcheck disable=SC2154
    mkdir -p "$tree"
    list=$(git ls-files -co --exclude-standard) || return
    while IFS= read -r path; do
        if [[ -z ${changed[$path]-} && -f $path ]] && ! cmp -s "$path" "$tree/$path"; then
            mkdir -p "$tree/$(dirname "$path")" && cp "$path" "$tree/$path" || return
        fi
    done <<<"$list"
    for path in "${!changed[@]}"; do
        mkdir -p "$tree/$(dirname "$path")"
        if [[ ! -f $tree/$path || ${changed[$path]} != "$(<"$tree/$path")" ]]; then printf '%s\n' "${changed[$path]}" >"$tree/$path" || return; fi
    done
}
