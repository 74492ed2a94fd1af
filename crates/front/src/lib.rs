//! What front ends share: how a connection is asked to end (`control`), who is connected (`clients`), and how the buffers that
//! replies hold are lent (`budget`, `account`), so that whatever one client does costs the others nothing.

mod account;
mod budget;
mod clients;
mod control;

pub use account::{Account, Loan, buffer_bytes};
pub use clients::{Clients, Limits};
pub use control::{Control, Stop};
