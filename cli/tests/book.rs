//! Runs the book's commands: their output must be as in the book.
//!
//! `TRYCMD=overwrite cargo test -p freehold --test book` writes the output into the book.
#![forbid(unsafe_code)]

#[test]
fn what_the_book_shows_is_what_happens() {
    // The book's reader has used the command before, so messages that each user gets once have been
    // shown.
    let cache = tempfile::tempdir().expect("temporary folder");
    let told = cache.path().join("freehold/volumes-are-shared");
    std::fs::create_dir_all(told.parent().expect("it has a folder")).expect("mkdir");
    std::fs::write(told, b"").expect("written");
    trycmd::TestCases::new()
        .register_bin("freehold", trycmd::cargo::cargo_bin!("freehold"))
        .env("XDG_CACHE_HOME", cache.path().to_str().expect("it is UTF-8"))
        .timeout(std::time::Duration::from_secs(150))
        .case("../docs/book/*.md");
}
