//! The book's commands, run as they stand there: what they print is what the book says.
//!
//! `TRYCMD=overwrite cargo test -p freehold --test book` writes what they print into the book.
#![forbid(unsafe_code)]

#[test]
fn what_the_book_shows_is_what_happens() {
    trycmd::TestCases::new()
        .register_bin("freehold", trycmd::cargo::cargo_bin!("freehold"))
        .timeout(std::time::Duration::from_secs(150))
        .case("../docs/book/*.md");
}
