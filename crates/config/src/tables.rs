//! The list of all tables of the configuration.

/// A table of the file.
pub struct Table {
    /// Its name; empty for the top level.
    pub name: &'static str,
    /// Written `[[name]]`, any number of times.
    pub repeated: bool,
}

/// All tables.
pub const TABLES: &[Table] = &[
    table("", false),
    table("state", false),
    table("memory", false),
    table("flash", false),
    table("control", false),
    table("api", false),
    table("history", false),
    table("alerts", false),
    table("log", false),
    table("nbd", false),
    table("iscsi", false),
    table("vhost_user", false),
    table("fleet", false),
    table("array", true),
    table("pool", true),
    table("datastore", true),
    table("volume", true),
    table("qos", true),
];

const fn table(name: &'static str, repeated: bool) -> Table {
    Table { name, repeated }
}

/// The table of that name, if there is one.
pub fn find_table(name: &str) -> Option<&'static Table> {
    TABLES.iter().find(|table| table.name == name && !name.is_empty())
}

/// A table's notation: `[memory]`, `[[volume]]`, `top level`.
pub fn show_table(name: &str) -> String {
    match find_table(name) {
        Some(table) if table.repeated => format!("[[{name}]]"),
        Some(_) => format!("[{name}]"),
        None => "top level".to_owned(),
    }
}
