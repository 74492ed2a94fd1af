//! The documentation of the configuration is made from the list of keys that the parser uses.

use std::path::Path;

use hotset::config::keys::{KEYS, Support, TABLES, show_table};

const BEGIN: &str = "<!-- keys: made from the parser's own list -->\n";
const END: &str = "<!-- end of keys -->";

fn keys_as_text() -> String {
    let mut text = String::new();
    for table in TABLES.iter().filter(|table| table.support == Support::Here) {
        text += &format!(
            "\n### {}\n\n| key | written | without it | meaning |\n|---|---|---|---|\n",
            show_table(table.name)
        );
        for key in KEYS.iter().filter(|key| key.table == table.name && key.support == Support::Here) {
            let cell = |text: &str| text.replace('|', "\\|");
            let (form, default) = (cell(key.form), cell(key.default));
            text += &format!("| `{}` | `{form}` | {default} | {} |\n", key.name, cell(key.doc));
        }
    }
    text += "\n### Known, not in this version\n\n";
    for table in TABLES {
        if let Support::NotHere(feature) = table.support {
            text += &format!("- `{}` ({feature})\n", show_table(table.name));
        }
    }
    for key in KEYS {
        if let Support::NotHere(feature) = key.support {
            text += &format!("- `{}` in `{}` ({feature})\n", key.name, show_table(key.table));
        }
    }
    text + "\n"
}

/// Set `UPDATE_DOCS=1` to write the file instead of comparing it.
#[test]
fn every_key_is_documented_as_the_parser_knows_it() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let text = std::fs::read_to_string(&file).expect("the page is there");
    let (before, rest) = text.split_once(BEGIN).expect("the page has the mark where keys begin");
    let (keys, after) = rest.split_once(END).expect("the page has the mark where keys end");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&file, format!("{before}{BEGIN}{}{END}{after}", keys_as_text()))
            .expect("the page can be written");
        return;
    }
    assert_eq!(keys, keys_as_text(), "docs/configuration.md is behind the list of keys; UPDATE_DOCS=1 writes it anew");
}
