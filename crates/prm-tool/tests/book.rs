//! The book of the repository's tables: it renders, and each of its links leads somewhere.

use std::process::Command;

#[test]
fn book_renders_with_sound_links() {
    let folder = std::env::temp_dir().join(format!("verbless-book-{}", std::process::id()));
    let output = Command::new(env!("CARGO_BIN_EXE_prm-book"))
        .args(["--check", "--output"])
        .arg(&folder)
        .output()
        .expect("the program starts");
    let pages = |part: &str| folder.join("book").join(part).is_file();
    let found = [pages("commands/create_cq.html"), pages("structures/cq_context.html")];
    let _ = std::fs::remove_dir_all(&folder);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains(" links lead to a page and an anchor of the site"), "{said}");
    assert_eq!(found, [true; 2]);
}
