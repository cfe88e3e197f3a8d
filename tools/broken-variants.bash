# Part of tools/broken-*: variants of the sources that a test must catch. Source it with the
# script's arguments, from the project's folder; call variant for each; then end_variants.
# Works on a copy; prints one line a variant.
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$copy"
tried=0 missed=0 check=
[ "${1:-}" != --check ] || { check=1; shift; }
chosen="$*"

# The tests of a crate that must catch a variant: its unit tests, or those of a file.
tests=(--lib)

# variant NAME CRATE FILE OLD NEW [ARGUMENT...]: OLD stands in FILE, below the crate's folder, once.
# The crate's tests that the arguments choose must catch NEW.
variant() {
    local name=$1 file=$2/src/$3 old=$4 new=$5 package
    package=$(sed -n 's/^name = "\(.*\)"/\1/p' "$2/Cargo.toml")
    [ -z "$chosen" ] || [[ " $chosen " == *" $name "* ]] || return 0
    tried=$((tried + 1))
    if [ "$(OLD=$old perl -0777 -ne 'print scalar(() = /\Q$ENV{OLD}\E/g)' "$file")" != 1 ]; then
        echo "$(basename "$0"): $name: the text to break does not stand in $file once" >&2
        missed=$((missed + 1))
        return 0
    fi
    [ -z "$check" ] || return 0
    OLD=$old NEW=$new perl -0777 -pe 's/\Q$ENV{OLD}\E/$ENV{NEW}/' "$file" >"$copy/$file"
    if (cd "$copy" && cargo test --quiet -p "$package" "${tests[@]}" -- "${@:6}") >"$copy/out" 2>&1; then
        echo "$name: NOT caught"
        missed=$((missed + 1))
    elif grep -q "panicked at" "$copy/out"; then
        echo "$name: caught: $(sed -n "s/^thread '\([a-z0-9_:]*\)'.*panicked at.*/\1/p" "$copy/out" | sort -u | head -1)"
    else
        echo "$name: the variant does not compile:" && tail -5 "$copy/out"
        missed=$((missed + 1))
    fi
    cp "$file" "$copy/$file"
}

# Prints the sum. Fails where a variant was not caught.
end_variants() {
    [ -n "$check" ] || echo "$((tried - missed)) of $tried broken variants are caught"
    [ "$missed" = 0 ]
}
