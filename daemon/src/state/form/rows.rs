//! The rows of one port: merged endpoints with their times.

use std::net::IpAddr;
use std::num::NonZeroU16;

use holdfast_core::list::{Row, RowParts, Rows};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
pub(super) struct RowForm {
    address: IpAddr,
    port: NonZeroU16,
    bits: u8,
    slice: u16,
    endpoint: u16,
    since: u32,
}

pub(super) fn forms(rows: &Rows) -> Vec<RowForm> {
    let form = |row: &Row| {
        let RowParts { address, port, bits, slice, endpoint, since } = row.to_parts();
        RowForm { address, port, bits, slice, endpoint, since }
    };
    rows.all().iter().map(form).collect()
}

pub(super) fn rows(forms: Vec<RowForm>) -> Option<Rows> {
    let row = |form: RowForm| {
        let RowForm { address, port, bits, slice, endpoint, since } = form;
        Row::from_parts(RowParts { address, port, bits, slice, endpoint, since })
    };
    Rows::remembered(forms.into_iter().map(row).collect())
}
